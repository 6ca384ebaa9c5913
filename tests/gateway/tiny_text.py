"""Small tokenizers, made on the spot, in the two styles that checkpoints use."""

from __future__ import annotations

import json
from datetime import datetime

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = (
    "the quick brown fox jumps over the lazy dog",
    "stop here and then go on, my friend",
    "füße über straßen und häuser 😀 🚀 日本語 テキスト",
)
NOW = datetime(2026, 3, 1, 12, 30)
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}\n"
    "<|{{ message.role }}|>{{ message.content }}<|end|>\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_level() -> Tokenizer:
    """GPT-2's way: every byte has a letter, so a character may be cut anywhere."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """SentencePiece's way: "▁" for blanks, byte tokens for what the vocabulary lacks."""
    pieces = ["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = sorted({char for line in CORPUS[:2] for char in line.replace(" ", "▁")})
    vocabulary = {piece: index for index, piece in enumerate([*pieces, *letters, "▁the", "▁dog"])}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "d"), ("▁d", "o"), ("▁do", "g")]
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return tokenizer


def files(tokenizer: Tokenizer, template: str | None = TEMPLATE) -> dict[str, bytes]:
    """The text files of a checkpoint with this tokenizer."""
    config = {"bos_token": "<|user|>", "eos_token": "<|end|>"}
    contents = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    return contents if template is None else contents | {"chat_template.jinja": template.encode()}
