"""What the facts about this machine's network mean: interfaces and multicast. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from swarm.commands.doctor.facts import Card, Facts, Multicast, Origin, Peer
from swarm.commands.doctor.findings import Finding, Grade, ok
from swarm.discovery.interfaces import AddressClass
from swarm.link.found import Outcome

PEER_FLAG = "name one member on each machine: swarm join --peer HOST:PORT"
NAME_ONE = f"N{PEER_FLAG[1:]}"


def interfaces(facts: Facts) -> Iterator[Finding]:
    """Which addresses others can use, and which stand in the way."""
    lan = [card for card in facts.cards if card.kind is AddressClass.LAN]
    yield from _usable(facts, lan)
    for card in facts.cards:
        if card.kind is AddressClass.VIRTUAL and lan:
            yield from _bridge(facts, card, lan)
        elif card.kind is AddressClass.TUNNEL and lan:
            yield Finding(
                Grade.NOTE, "interfaces", "vpn", f"{card.name} ({card.host}) looks like a VPN.",
                "Its address is not announced, since there is a local network.",
                "To use the VPN, listen on its address: swarm join --listen "
                f"{card.host}:PORT, and {PEER_FLAG}.",
            )  # fmt: skip
    yield from _same_network(lan)


def _usable(facts: Facts, lan: list[Card]) -> Iterator[Finding]:
    if lan:
        shown = ", ".join(f"{card.name} {card.host}" for card in lan)
        yield ok("interfaces", f"Other machines can reach this one at {shown}.")
        if all(card.is_v6 for card in lan):
            yield Finding(
                Grade.WARNING, "interfaces", "ipv6-only", "This machine has IPv6 addresses only.",
                "Nodes look for each other by IPv4 multicast, so none is found by itself.",
                f"On IPv6, {PEER_FLAG}.",
            )  # fmt: skip
        return
    others = [card for card in facts.cards if card.kind < AddressClass.LOOPBACK]
    if not others:
        yield Finding(
            Grade.PROBLEM, "interfaces", "no-network", "No network interface has an address.",
            "No other machine can be reached; only nodes on this machine find each other.",
            "Connect a cable or a Wi-Fi, and try again.",
        )  # fmt: skip
        return
    best = min(others, key=lambda card: card.kind)
    kind = {
        AddressClass.LINK_LOCAL: "gave itself an address because no router gave it one",
        AddressClass.TUNNEL: "is a VPN",
        AddressClass.VIRTUAL: "is a bridge inside this machine, as containers use it",
    }[best.kind]
    is_bridge = best.kind is AddressClass.VIRTUAL
    yield Finding(
        Grade.PROBLEM if is_bridge else Grade.WARNING, "interfaces",
        "only-bridges" if is_bridge else "no-lan-address",
        f"The only network is {best.name} ({best.host}), which {kind}.",
        "Machines beside this one cannot reach it there." if is_bridge else
        "Only machines in the same situation can reach it there.",
        "Run the container in the host's network, or connect the machine to the network."
        if is_bridge else f"Connect the machine to the network of the others, or {PEER_FLAG}.",
    )  # fmt: skip


def _bridge(facts: Facts, card: Card, lan: list[Card]) -> Iterator[Finding]:
    """A bridge inside this machine: harmless, unless the addresses of others fall into it."""
    clash = next((other for other in lan if other.network.overlaps(card.network)), None)
    if clash is not None:
        yield Finding(
            Grade.PROBLEM, "interfaces", "bridge-shadows-network",
            f"{card.name} ({card.host}) and {clash.name} ({clash.host}) both claim the network "
            f"{card.network}, and {card.name} is a bridge inside this machine.",
            "What is meant for other machines may go into the bridge and be lost.",
            f"Give the bridge another network, or take {card.name} down.",
        )  # fmt: skip
        return
    inside = [p for p in facts.peers if card.reaches(p.found.address.host)]
    lost = [p for p in inside if p.found.outcome is not Outcome.MEMBER]
    if lost:
        yield Finding(
            Grade.PROBLEM, "interfaces", "peer-behind-bridge",
            f"{lost[0].found.address} lies in the network of {card.name}, a bridge inside this "
            "machine.",
            "What is meant for that node goes into the bridge and not to the other machine.",
            "On the other machine, listen on its address in the local network: "
            "swarm join --listen HOST:PORT.",
        )  # fmt: skip
        return
    yield Finding(
        Grade.NOTE, "interfaces", "bridge",
        f"{card.name} ({card.host}) is a bridge inside this machine, as containers use it.",
        "Its address is not announced, since others cannot reach it.",
    )  # fmt: skip


def _same_network(lan: list[Card]) -> Iterator[Finding]:
    """Two interfaces in one network, or several networks."""
    v4 = [card for card in lan if not card.is_v6]
    for index, one in enumerate(v4):
        for other in v4[index + 1 :]:
            if one.name != other.name and one.network.overlaps(other.network):
                yield Finding(
                    Grade.WARNING, "interfaces", "network-twice",
                    f"{one.name} ({one.host}) and {other.name} ({other.host}) are in one network.",
                    "Answers may leave by the slower of the two, or by one that a firewall blocks.",
                    "Take one of them down (the Wi-Fi, where there is a cable).",
                )  # fmt: skip
                return
    if len({str(card.network) for card in v4}) > 1:
        yield Finding(
            Grade.NOTE, "interfaces", "several-networks",
            f"This machine is in {len({str(card.network) for card in v4})} networks.",
            "All of its addresses are announced, and the one that answers first is used.",
        )  # fmt: skip


# -------------------------------------------------------------------- multicast


def multicast(facts: Facts) -> Iterator[Finding]:
    """Heard and sent, per interface."""
    if not facts.uses_multicast:
        yield Finding(
            Grade.NOTE, "multicast", "multicast-off", "Multicast is switched off by the settings.",
            "Nodes do not find each other by themselves.", NAME_ONE + ".",
        )  # fmt: skip
        return
    names = {card.host: card for card in facts.cards}
    for seen in facts.multicast:
        card = names.get(seen.host)
        yield _multicast_on(facts, seen, f"{card.name} ({seen.host})" if card else seen.host, card)


def _multicast_on(facts: Facts, seen: Multicast, where: str, card: Card | None) -> Finding:
    heard = {True: "yes", False: "no", None: "not known"}[seen.is_heard]
    sent = {True: "yes", False: "no", None: "not known"}[seen.is_sent]
    what = f"Multicast on {where}: heard: {heard}, sent: {sent}."
    if seen.problem:
        return Finding(
            Grade.PROBLEM, "multicast", "multicast-impossible",
            f"Multicast on {where} cannot be used: {seen.problem}.",
            "Nodes do not find each other by themselves there.", NAME_ONE + ".",
        )  # fmt: skip
    if seen.is_heard and seen.is_sent:
        return ok("multicast", what)
    if seen.is_heard is None and seen.is_sent is None:
        return _nobody(facts, what, card)
    if seen.is_sent and seen.is_heard is False:
        return Finding(
            Grade.PROBLEM, "multicast", "multicast-in-filtered", what,
            "A firewall on this machine keeps out what others announce.",
            "Let UDP port 5353 in (mDNS), or " + PEER_FLAG + ".",
        )  # fmt: skip
    if seen.is_heard and seen.is_sent is False:
        return Finding(
            Grade.PROBLEM, "multicast", "multicast-out-filtered", what,
            "Others are heard and do not hear this machine: a firewall here, or the access point, "
            "drops what it announces.",
            "Let UDP port 5353 out (mDNS), or " + PEER_FLAG + ".",
        )  # fmt: skip
    if seen.is_heard or seen.is_sent:
        return ok("multicast", what)
    return Finding(
        Grade.WARNING, "multicast", "multicast-filtered", what + " Unicast: yes.",
        "A switch, an access point or a firewall drops multicast, so nodes do not find each "
        "other by themselves; once connected all works.",
        NAME_ONE + "; or let multicast pass (IGMP snooping without a querier, and "
        "the guest mode of access points, often stop it).",
    )  # fmt: skip


def _nobody(facts: Facts, what: str, card: Card | None) -> Finding:
    """Nobody was heard, and nobody is known for sure to take part in multicast."""
    own = {each.host for each in facts.cards}  # nodes of this machine tell nothing of the network
    others = [p for p in facts.peers if p.found.address.host not in own]
    near = [p for p in others if card is not None and card.reaches(p.found.address.host)]
    if any(peer.found.outcome is Outcome.MEMBER for peer in near):
        return Finding(
            Grade.WARNING, "multicast", "multicast-unanswered", what + " Unicast: yes.",
            "Members of that network answer, and none of them by multicast: it is filtered, or "
            "they were started with --no-mdns.",
            NAME_ONE + "; or let UDP port 5353 (mDNS) pass on all machines.",
        )  # fmt: skip
    cut_off = [p for p in near if p.found.outcome is Outcome.SILENT and not p.is_neighbour]
    if cut_off and len(cut_off) == len(near):
        return _isolated(what, cut_off, is_wireless=card is not None and card.is_wireless)
    return Finding(
        Grade.NOTE, "multicast", "nobody-there", what,
        "Nobody else is known in that network who could have answered.",
        "Start a node on a second machine and ask again.",
    )  # fmt: skip


def _isolated(what: str, cut_off: list[Peer], *, is_wireless: bool) -> Finding:
    is_certain = any(peer.origin is not Origin.REMEMBERED for peer in cut_off)
    how = (
        "the access point isolates its clients"
        if is_wireless
        else "client isolation, separate VLANs, or machines that are off"
    )
    return Finding(
        Grade.PROBLEM if is_certain else Grade.WARNING, "multicast", "isolation",
        what + " Unicast: no.",
        f"Nothing at all comes from the other machines of this network: {how}.",
        "If they are on: switch the isolation of clients off (guest networks have it), use a "
        "cable, or put the machines into one VLAN.",
    )  # fmt: skip
