"""What the facts about other nodes mean: reach in both directions, key, versions, clocks. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from swarm.commands.doctor.facts import Facts, Origin, Peer
from swarm.commands.doctor.findings import Finding, Grade, ok
from swarm.link.found import Outcome
from swarm.link.handshake import ProtocolRange

CLOCK_SKEW_S = 5.0
"""Logs of two machines whose clocks differ by more cannot be read side by side."""

_INDIRECT = {
    "relayed": "by way of a third node",
    "webrtc": "over a WebRTC data channel",
}
_CHANNEL_HINT = (
    " Where datagrams (UDP) pass, pip install 'swarm[webrtc]' on both spares the third node."
)


def reach(facts: Facts) -> Iterator[Finding]:
    """Every node that was looked at, and whether it reaches this one too."""
    if not facts.peers:
        yield Finding(
            Grade.NOTE, "peers", "no-peers", "No other node is known here.",
            "Nothing can be said about the way to other machines.",
            "Start a node on a second machine, or name one: swarm doctor --peer HOST:PORT.",
        )  # fmt: skip
    members = [peer for peer in facts.peers if peer.found.outcome is Outcome.MEMBER]
    shut_out = [peer for peer in members if peer.found.is_reached_back is False]
    for peer in facts.peers:
        if peer in shut_out:
            yield _shut_out(facts, peer, everybody=len(shut_out) == len(members))
        elif peer.found.outcome is Outcome.MEMBER:
            back = "in both directions" if peer.found.is_reached_back else "from here"
            yield ok("peers", f"{_who(peer)} can be reached {back}.")
        elif peer.found.outcome not in (Outcome.OTHER_KEY, Outcome.OTHER_VERSION):
            yield _unreached(peer, there_are_members=bool(members))


def _who(peer: Peer) -> str:
    address = str(peer.found.address)
    return f"{peer.name} ({address})" if peer.name else address


def _shut_out(facts: Facts, peer: Peer, *, everybody: bool) -> Finding:
    what = f"{_who(peer)} can be reached, and cannot reach this machine: {peer.found.back_detail}."
    where = "this machine" if everybody else "the way from there"
    return Finding(
        Grade.PROBLEM, "peers", "one-way-firewall-here", what,
        f"A firewall on {where} drops connections that come in; links made from here still work.",
        "Let TCP connections in to the port that the node listens on, or fix it with "
        "swarm join --listen 0.0.0.0:PORT and open that one.",
    )  # fmt: skip


def _unreached(peer: Peer, *, there_are_members: bool) -> Finding:
    outcome, detail = peer.found.outcome, peer.found.detail
    if outcome in (Outcome.SILENT, Outcome.NO_WAY) and peer.is_linked and peer.kind in _INDIRECT:
        return Finding(
            Grade.NOTE, "peers", "indirect-link",
            f"{_who(peer)} is linked with the node here {_INDIRECT[peer.kind]}, and takes no "
            f"connection from here: {detail}.",
            "A firewall, or a radio that keeps its clients apart, drops connections between the "
            "two. The link works, and costs more than a direct one.",
            "Let TCP connections in to the port that the node listens on, on either machine."
            + (_CHANNEL_HINT if peer.kind == "relayed" else ""),
        )  # fmt: skip
    if outcome in (Outcome.SILENT, Outcome.NO_WAY) and (peer.is_linked or peer.is_heard):
        how = "is linked with the node here" if peer.is_linked else "is heard by multicast"
        return Finding(
            Grade.PROBLEM, "peers", "one-way-firewall-there",
            f"{_who(peer)} {how}, and takes no connection from here: {detail}.",
            "A firewall on that machine drops connections that come in; links that it makes itself "
            "work.",
            "On that machine, let TCP connections in to the port that its node listens on.",
        )  # fmt: skip
    if outcome is Outcome.SILENT and peer.is_neighbour:
        return Finding(
            Grade.PROBLEM, "peers", "firewall-there",
            f"{_who(peer)} is there (it answers on the link layer), and takes no connection from "
            "here.",
            "A firewall on that machine drops connections that come in.",
            "On that machine, let TCP connections in to the port that its node listens on.",
        )  # fmt: skip
    is_expected = peer.origin in (Origin.ASKED, Origin.STATE, Origin.HEARD)
    grade = Grade.PROBLEM if is_expected and not peer.is_linked else Grade.NOTE
    told = {
        Outcome.SILENT: (
            "silent", "The machine is off or in another network, or a firewall drops everything.",
            "See whether the machine is on and in this network; then look at its firewall."),
        Outcome.CLOSED: (
            "nobody-listens", "The machine is there, and no node listens on that port.",
            "Start its node, and use the port that `swarm join` prints there."),
        Outcome.NO_WAY: (
            "no-way", "This machine knows no way to that address.",
            "Check the address, and that both machines are in one network."),
        Outcome.MUTE: (
            "mute", "Something else than a node has that port, or that node hangs.",
            "Check the port that `swarm join` prints there, and start that node again."),
    }  # fmt: skip
    cause, so_what, to_do = told[outcome]
    if grade is Grade.NOTE and there_are_members:
        so_what, to_do = "It is not needed: other members answer.", ""
    what = f"{_who(peer)}, {peer.origin.value}, does not answer: {detail}."
    return Finding(grade, "peers", cause, what, so_what, to_do)


# -------------------------------------------------------------------- one swarm, one language


def key(facts: Facts) -> Iterator[Finding]:
    """Whether this machine's key is that of the others."""
    if facts.key_problem:
        yield Finding(
            Grade.PROBLEM, "key", "key-damaged", f"The swarm key cannot be read: "
            f"{facts.key_problem}.", "This machine can join no swarm.",
            "Type the line that `swarm key show` prints on another machine.",
        )  # fmt: skip
        return
    refusing = [peer for peer in facts.peers if peer.found.outcome is Outcome.OTHER_KEY]
    foreign = {heard.tag: heard.name for heard in facts.heard if heard.tag != facts.tag}
    is_at_home = any(heard.tag == facts.tag for heard in facts.heard) or any(
        peer.found.outcome is Outcome.MEMBER for peer in facts.peers
    )
    heard = ", ".join(f"{tag} (node {name})" for tag, name in sorted(foreign.items()))
    if not facts.tag:
        what = (
            f"This machine has no swarm key yet{'; swarms heard here: ' + heard if heard else ''}."
        )
        yield Finding(
            Grade.NOTE, "key", "no-key", what,
            "The first `swarm join` starts a new swarm and makes one.",
            "To join a swarm that exists, type the line that `swarm key show` prints there.",
        )  # fmt: skip
        return
    if refusing or (foreign and not is_at_home):
        who = ", ".join(_who(peer) for peer in refusing)
        parts = [f"{who} hung up at the first message" if who else "",
                 f"the swarms heard here are {heard}" if heard else ""]  # fmt: skip
        yield Finding(
            Grade.PROBLEM, "key", "wrong-key",
            f"This machine has the key of swarm {facts.tag}, but "
            f"{' and '.join(part for part in parts if part)}.",
            "Machines with different keys are different swarms and do not talk to each other.",
            "If they should be one, type here the line that `swarm key show` prints there.",
        )  # fmt: skip
        return
    yield ok("key", f"This machine has the key of swarm {facts.tag}.")
    if foreign:
        yield Finding(
            Grade.NOTE, "key", "other-swarms", f"Other swarms are on this network: {heard}.",
            "They and this one do not disturb each other.",
        )  # fmt: skip


def versions(facts: Facts, ours: ProtocolRange) -> Iterator[Finding]:
    """Whether all nodes speak a protocol version in common."""
    agreeing = True
    for peer in facts.peers:
        theirs = peer.found.protocol
        if theirs is None or theirs == ours:
            continue
        newer = theirs.high > ours.high
        update = "this machine" if newer else "that machine"
        if peer.found.outcome is Outcome.OTHER_VERSION:
            agreeing = False
            yield Finding(
                Grade.PROBLEM, "versions", "version-skew",
                f"{_who(peer)} speaks protocol {theirs}, this machine {ours}.",
                "They have no version in common and cannot work together.",
                f"Update Swarm on {update}.",
            )  # fmt: skip
        else:
            yield Finding(
                Grade.NOTE, "versions", "versions-differ",
                f"{_who(peer)} speaks protocol {theirs}, this machine {ours}.",
                "They use the highest version that both know.", f"Update {update} when you can.",
            )  # fmt: skip
    if agreeing and any(peer.found.protocol is not None for peer in facts.peers):
        yield ok("versions", f"All nodes that answered speak protocol {ours}.")


def clocks(facts: Facts) -> Iterator[Finding]:
    """Wall clocks are for people and logs; nothing in a swarm rests on them."""
    told = [(peer, peer.found.clock_offset_s) for peer in facts.peers]
    known = [(peer, offset) for peer, offset in told if offset is not None]
    wrong = [(peer, offset) for peer, offset in known if abs(offset) > CLOCK_SKEW_S]
    for peer, offset in wrong:
        way = "ahead of" if offset > 0 else "behind"
        yield Finding(
            Grade.WARNING, "clock", "clock-skew",
            f"The clock of {_who(peer)} is {abs(offset):.0f} s {way} this machine's.",
            "Logs of the two cannot be read side by side; answers are not affected.",
            "Switch time synchronisation (NTP) on, on both.",
        )  # fmt: skip
    if known and not wrong:
        most = max(abs(offset) for _, offset in known)
        yield ok("clock", f"The clocks of all nodes that answered agree within {most:.1f} s.")
