"""The leader as known to a client, and the search for a new one.

    UNKNOWN ──search: RequestConfig to each known peer in turn, until one names a leader──▶ KNOWN (url)
       ▲                                                                                      │
       ├──── no reply within 500 ms, or a peer without a known leader: wait 300 ms first ─────┤
       │                                                                                      │
       └──── a leader outside the known configuration: search now    another leads: KNOWN (its url)

These are the states of the specification's "broken known leader state". Differences:

- Requests wait for one shared search; then each goes to the found leader. The specification sends the last request to
  each peer in turn. With 64 requests under way that would query each peer 64 times.
- The turns overlap: after `turn_s` without a reply the next peer is queried too, and the first useful reply counts. So
  a dead peer costs only a tenth of a second. Peers that did not reply, and peers that named them, are queried last.
- If a peer does not reply to one request but serves others, it still leads; only that request is repeated.
- Two peers that name each other count as peers without a leader, so a client does not alternate between them.

A malicious peer may misreport the leader and the members. It can send a client to other addresses, and it can report an
update as committed, because the protocol does not prove anything. Use CURVE if that matters.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack

import trio

from consensus.protocols.zmq_raft.client.links import ClientLink, ClientLinks, ZmqClientOptions
from consensus.protocols.zmq_raft.wire.codec import encode_request
from consensus.protocols.zmq_raft.wire.messages import ClientReply, ClientRequest, ConfigReply, ConfigRequest, Peer

_REDIRECTS_MIN = 3
_REPLIES_SHOWN_MAX = 8


class _Poll:
    """One RequestConfig to one of several peers. The first reply of each peer goes into a shared channel."""

    request_type: type[ClientRequest] = ConfigRequest
    follows_leader = False

    def __init__(self, url: str, answers: trio.MemorySendChannel[tuple[str, ConfigReply]]) -> None:
        self._url = url
        self._answers: trio.MemorySendChannel[tuple[str, ConfigReply]] | None = answers

    def take(self, reply: ClientReply, _size: int) -> None:
        if self._answers is not None and isinstance(reply, ConfigReply):
            self._answers.send_nowait((self._url, reply))
            self._answers = None

    def give_up(self) -> None:
        """Do nothing: the link is in use, so it is not closed."""


class KnownLeader:
    """The leader of a cluster, from the point of view of one client."""

    def __init__(self, links: ClientLinks, seeds: Sequence[str], ident: bytes, options: ZmqClientOptions) -> None:
        self.links = links
        self.ident = ident
        self.options = options
        self.peers: tuple[Peer, ...] = ()
        """The members according to the last reply."""
        self.has_peer_replied = False
        """True if any peer has replied. Peers of another cluster do not reply, so `ident` is right in this case."""
        self._seeds = tuple(dict.fromkeys(seeds))
        self._url: str | None = None
        self._waits_first = False
        self._preferred_url: str | None = None
        self._named_by: str | None = None
        """Peer that named the leader."""
        self._failed_urls: frozenset[str | None] = frozenset()
        self._redirects = 0
        self._searching = trio.Lock()
        links.keep(self._seeds)
        self._replies: dict[str, str] = {}
        self._silence = f"no answer within {options.response_ttl_s * 1000:.0f} ms"

    @property
    def url(self) -> str | None:
        """Return the address of the leader; None while it is not known."""
        return self._url

    def account(self) -> str:
        """Return the last reports of the queried peers."""
        replies = [f"{url}: {self._replies[url]}" for url in self._known_urls() if url in self._replies]
        more = [f"and {len(replies) - _REPLIES_SHOWN_MAX} more"] if len(replies) > _REPLIES_SHOWN_MAX else []
        return "; ".join((*replies[:_REPLIES_SHOWN_MAX], *more)) or "no peer was queried"

    async def link(self) -> ClientLink:
        """Return the connection to the leader, when one is known."""
        while True:
            while self._url is None:
                async with self._searching:
                    if self._url is None:
                        await self._search()
            try:
                return self.links.open(self._url)
            except OSError as error:
                self._cannot_reach(self._url, error)
                self.lose(self._url, waits_first=True)

    def served(self, link: ClientLink) -> None:
        """Record that the peer performed a leader's task."""
        link.served_s = trio.current_time()
        self._redirects = 0
        self._failed_urls = frozenset()

    def silent(self, link: ClientLink, since_s: float) -> None:
        """Record a timeout of a request to the peer; `since_s` is the time when it was sent, accepted or confirmed."""
        if link.served_s <= since_s:
            self._replies[link.url] = self._silence
            self.lose(link.url, waits_first=True)

    def redirected(self, link: ClientLink, leader: str | None) -> None:
        """Follow the peer's redirect; `leader` is the id of the leader according to the peer."""
        self._replies[link.url] = (
            "does not lead, and does not know a leader" if leader is None else f"reports that {leader!r} leads"
        )
        if link.url != self._url:
            return
        url = self._url_of(leader)
        self._redirects += 1
        if leader is None or url == link.url or self._redirects > max(_REDIRECTS_MIN, len(self.peers)):
            self._redirects = 0
            self.lose(link.url, waits_first=True)
        elif url is None:
            # The leader joined after the last query. So query the peer that named it, which has the address.
            self.lose(link.url, waits_first=False)
            self._preferred_url = link.url
        else:
            self._establish(url, link.url)

    def lose(self, url: str, *, waits_first: bool) -> None:
        """Drop the leader if its address is still `url`. With `waits_first`, the peers get time to elect another."""
        if url == self._url:
            self._url = None
            self._waits_first = waits_first
            known, last = self._known_urls(), frozenset((url, self._named_by))
            # Without the earlier failed URLs, two peers that name one dead address would be queried alternately.
            failed = self._failed_urls | last
            self._failed_urls = last if failed.issuperset(known) else failed
            self.links.keep(known)

    def unfit(self, url: str, what: str) -> None:
        """Drop a peer that claims to lead but does not perform a leader's task."""
        self._replies[url] = what
        self.lose(url, waits_first=True)

    async def config(self) -> ConfigReply:
        """Return the members and the leader, as reported by the leader, or by another peer while no leader replies."""
        while True:
            async with self._searching:
                config = None if self._url is not None else await self._query_peers()
            if self._url is not None:
                config = await self._request_config(self._url) or config
            if config is not None:
                return config
            await trio.sleep(self.options.election_grace_s)

    async def _request_config(self, url: str) -> ConfigReply | None:
        try:
            request = ConfigRequest(self.links.next_request_id(), self.ident)
            reply = await self.links.ask(url, request, self.options.response_ttl_s)
        except OSError as error:
            self._cannot_reach(url, error)
        else:
            if isinstance(reply, ConfigReply):
                if not self._learn(url, reply):
                    self.lose(url, waits_first=True)
                return reply
            self._replies[url] = self._silence
        self.lose(url, waits_first=True)
        return None

    async def _search(self) -> None:
        while self._url is None:
            if self._waits_first:
                await trio.sleep(self.options.election_grace_s)
            self._waits_first = True
            await self._query_peers()

    async def _query_peers(self) -> ConfigReply | None:
        """Query every known peer until one names a leader; return the last reply."""
        waiting, best = deque(self._in_order()), None
        send, answers = trio.open_memory_channel[tuple[str, ConfigReply]](len(waiting))
        request = ConfigRequest(self.links.next_request_id(), self.ident)
        frames, unanswered = encode_request(request), 0
        with ExitStack() as stack:
            while waiting or unanswered:
                if waiting:
                    unanswered += self._poll(stack, waiting.popleft(), request, frames, send)
                timeout_s = self.options.turn_s if waiting else self.options.response_ttl_s
                with trio.move_on_after(timeout_s) as scope:
                    url, best = await answers.receive()
                    unanswered -= 1
                    if self._learn(url, best):
                        break
                if scope.cancelled_caught and not waiting:
                    break
        return best

    def _poll(
        self,
        stack: ExitStack,
        url: str,
        request: ConfigRequest,
        frames: Sequence[bytes],
        answers: trio.MemorySendChannel[tuple[str, ConfigReply]],
    ) -> int:
        """Query one peer; return the number of expected replies."""
        try:
            link = stack.enter_context(self.links.use(url))
        except OSError as error:
            self._cannot_reach(url, error)
            return 0
        self._replies[url] = self._silence
        stack.callback(link.end, request.request_id)
        link.begin(request.request_id, _Poll(url, answers), frames)
        return 1

    def _learn(self, url: str, reply: ConfigReply) -> bool:
        """Store the leader and the peers of a peer's reply; return True if a leader is known now."""
        self.has_peer_replied = True
        if reply.peers:
            self.peers = reply.peers
            known = self._known_urls()
            self._replies = {each: text for each, text in self._replies.items() if each in known}
            if self._url is None:
                self.links.keep(known)
        leads = url if reply.is_leader else self._url_of(reply.leader)
        if reply.is_leader:
            self._replies[url] = "reports that it leads"
        elif reply.leader is None:
            self._replies[url] = "does not know a leader"
        else:
            self._replies[url] = f"reports that {reply.leader!r} leads"
        if leads is None or (leads == url and not reply.is_leader):
            return False
        self._establish(leads, url)
        return True

    def _establish(self, url: str, named_by: str) -> None:
        self._url = url
        self._named_by = named_by
        self._waits_first = False
        self._preferred_url = None
        self.links.follow(url)

    def _cannot_reach(self, url: str, error: OSError) -> None:
        self._replies[url] = str(error.strerror or error)

    def _url_of(self, peer_id: str | None) -> str | None:
        return next((peer.url for peer in self.peers if peer.peer_id == peer_id), None)

    def _known_urls(self) -> tuple[str, ...]:
        """Return all known URLs, the seeds first: a peer may name members that do not exist."""
        return tuple(dict.fromkeys((*self._seeds, *(peer.url for peer in self.peers))))

    def _in_order(self) -> list[str]:
        """Return all known peers, in query order."""
        return sorted(self._known_urls(), key=lambda url: (url != self._preferred_url, url in self._failed_urls))
