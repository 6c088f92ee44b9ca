"""A judge behind an OpenAI-compatible server (vLLM, SGLang, llama.cpp, ...).

The official tool judges so: its judge runs in a server of its own, and each pair of
steps is one request. The prompt is that of `lr/spec/verifiers/judge.py`. The first of
the two words in the answer decides or, where the server gives log-probabilities, its
probability.

A request is sent at most `attempts` times. A pair without a verdict is rejected. After
`FAILURES` such pairs in a row the judge is lost: the run ends, or, if the user wants it
so, continues and rejects every draft step. Texts of the server are shown by `_quote`
only, which removes the key.
"""

import asyncio
import math
import re
import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from lr.errors import LRError, SettingError
from lr.result import reply
from lr.spec.checks import SURROGATE
from lr.spec.verifiers.base import Pair, Verifier
from lr.spec.verifiers.judge import (
    FAILURES,
    JUDGE_PROMPT,
    OPEN_THOUGHT,
    VERDICT_WORDS,
    Decode,
    at_least,
    fill_prompt,
    no_verdict,
    texts_of,
    unless_equal,
)
from lr.types import Verdict, require

FIRST_PAUSE = 0.5  # seconds before the second attempt; doubles, up to the timeout
BUSY = (408, 429)  # with 5xx: statuses that another attempt may mend
UNFIT = (400, 413, 422)  # the request has a field or a length that the server refuses
# "[unaligned]" takes about five tokens
SHORT: dict[str, Any] = {"temperature": 0, "max_tokens": 16}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
FORMS = (
    SHORT | NO_THINKING | {"logprobs": True, "top_logprobs": 20},
    SHORT | NO_THINKING,
    SHORT,
    {"max_completion_tokens": 2048},  # of a model that cannot but think
)
"""The settings of a request. If a server refuses one form, it gets the next."""
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What an answer in no known form raises where it is read."""


class JudgeError(LRError):
    """The judge's server cannot be reached, refuses a request, or fails too often."""


class _Unanswered(Exception):
    """There is no answer to this pair: why."""


class _Unreachable(_Unanswered):
    """There is none to this request; another one may have one."""


@dataclass(eq=False, repr=False)
class ServedJudge(Verifier):
    """Asks the model `model` of the server at `url` (before `/v1`) about each pair.

    `model` None: the server's only one. `decode` turns the target's tokens into text.
    """

    url: str
    decode: Decode
    model: str | None = None
    timeout: float = 60.0
    attempts: int = 3
    lost: Literal["stop", "reject"] = "stop"
    api_key: str | None = None

    name = "judge"
    failures = 0  # pairs without a verdict since the last one with a verdict
    failure = ""  # why the last of them has none
    form = 0  # the first of `FORMS` that the server may take
    answered = False  # whether it has taken one

    def __post_init__(self) -> None:
        # 1. Check what the user gave.
        require(0 < self.timeout < math.inf, "judge_timeout", self.timeout, "above 0")
        require(1 <= self.attempts <= 100, "judge_attempts", self.attempts, "1 to 100")
        self.url = checked_url(self.url)
        self.api_key = (self.api_key or "").strip()
        if not re.fullmatch(r"[!#-&(-\[\]-~]*", self.api_key):
            raise SettingError(  # without showing it
                "LR_API_KEY (api_key) holds a blank, a quote, a backslash or a character "
                "outside ASCII; expected the key alone, as the server's owner gave it."
            )
        # 2. What sends requests. `asyncio.timeout` bounds them; `timeout` is for the
        # connection. Proxies of the environment are for other machines: a client with a
        # transport of its own uses none.
        is_near = httpx.URL(self.url).host in ("localhost", "127.0.0.1", "::1")
        bearer = {"Authorization": f"Bearer {self.api_key}"}
        try:
            self._http = httpx.AsyncClient(
                base_url=self.url,
                headers=bearer if self.api_key else {},
                timeout=httpx.Timeout(None, connect=self.timeout),
                transport=httpx.AsyncHTTPTransport() if is_near else None,
            )
        except (ValueError, ImportError, OSError):  # their messages may hold a password
            raise SettingError(
                "the environment's HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or SSL_CERT_FILE "
                "cannot be used; expected an address such as http://proxy:3128, or a file "
                "of certificates (PEM)."
            ) from None
        # 3. The thread in which they run: Ctrl-C in the main thread need not wait for a
        # silent server, and a notebook has an event loop already.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
        # 4. The judge's name.
        self.model = self.model or self._wait([self._only_model()])[0]
        in_unicode = not SURROGATE.search(self.model)
        require(in_unicode, "judge_model", self.model, "a name in Unicode")

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Judge all pairs at once. Raises `JudgeError` if that ends the run."""
        return unless_equal(
            pairs, self.decode, lambda others: self._wait(map(self._judge_pair, others))
        )

    def _wait(self, work: Iterable[Any]) -> list[Any]:
        """The results of `work`, all of which runs at once in the thread of the
        requests; Ctrl-C cancels it."""
        futures = [asyncio.run_coroutine_threadsafe(w, self._loop) for w in work]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    async def _judge_pair(self, pair: Pair) -> Verdict:
        """The verdict. A pair that gets none is rejected, unless the judge is lost."""
        if self.lost == "stop" or self.failures < FAILURES:
            self.passes += 1
            try:
                return await self._ask(pair)
            except _Unanswered as error:
                self.failures += 1
                self.failure = f"the judge at {self.url} {error}"
            if self.lost == "stop" and self.failures >= FAILURES:
                raise JudgeError(
                    f"{self.failure} ({self.failures} pairs in a row). Is the server up, "
                    f"and is {self._quote(self.model)} its name for a judge that answers "
                    "without a thought?"
                )
        return no_verdict(self.failure)

    async def _ask(self, pair: Pair) -> Verdict:
        """The judge's verdict. Raises `_Unanswered` after the last attempt, and
        `JudgeError` if no pair will get one."""
        question = fill_prompt(JUDGE_PROMPT, *texts_of(pair, self.decode))
        messages = [{"role": "user", "content": question}]
        body = {"model": self.model, "messages": messages}
        usual = FIRST_PAUSE
        wish = ""  # of the server: the seconds until the next attempt
        for attempt in range(self.attempts):
            if attempt:
                pause = float(wish) if wish.isdecimal() else usual
                await asyncio.sleep(min(pause or usual, self.timeout))
                usual *= 2
            try:
                response = await self._post(body)
            except _Unreachable as error:
                reason = str(error)
                continue
            status = response.status_code
            reason = f"gave status {status}, no verdict: {self._quote(response.text)}"
            wish = response.headers.get("retry-after", "")
            if status == 200:
                with suppress(*UNREADABLE):
                    if verdict := read_choice(response.json()["choices"][0]):
                        self.failures = 0
                        return verdict
            elif status in UNFIT and self.answered:  # this pair is too long for it
                raise _Unanswered(reason)
            elif status < 500 and status not in BUSY:
                raise JudgeError(
                    f"the judge at {self.url} {reason}. Check the address, the judge's "
                    "name on the server and the key (environment variable LR_API_KEY)."
                )
        raise _Unanswered(f"{reason}, {self.attempts} times")

    async def _post(self, body: dict[str, Any]) -> httpx.Response:
        """The response to a question, in the first form that the server takes."""
        form = self.form
        response = await self._send("POST", "chat/completions", body | FORMS[form])
        status = response.status_code
        # some servers fail where log-probabilities are asked for
        unfit = status in UNFIT or (status == 500 and form == 0)
        # another pair may have found a later form meanwhile
        open_to_blame = form < self.form or not self.answered
        if unfit and open_to_blame and form + 1 < len(FORMS):
            self.form = max(self.form, form + 1)
            return await self._post(body)
        self.answered |= status == 200
        return response

    async def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """The response to one request. Raises `_Unreachable`, or `_Unanswered` after
        silence: the server may still be working, and another request would only have
        to wait behind this one, so this one waits as long as all attempts may take."""
        patience = self.timeout * self.attempts
        try:
            async with asyncio.timeout(patience):
                return await self._http.request(method, f"/v1/{path}", json=body)
        except TimeoutError:
            raise _Unanswered(f"was silent for {patience:g} seconds") from None
        except httpx.HTTPError as error:
            reason = self._quote(repr(error))
            if "CERTIFICATE_VERIFY_FAILED" in reason:
                raise JudgeError(
                    f"the judge at {self.url}: {reason}. Name the file with the server's "
                    "certificate, or its authority's, in the environment variable "
                    "SSL_CERT_FILE; the address must be the one that the certificate is for."
                ) from None
            raise _Unreachable(f"did not answer: {reason}") from None

    def _quote(self, text: object) -> str:
        """A text of the server for a message: short, and without the key."""
        shown = str(text).replace("\\/", "/")  # so some write a slash in JSON
        if self.api_key:
            shown = shown.replace(self.api_key, "(the key)")
        return repr(shown[:300])

    async def _only_model(self) -> str:
        """The name of the server's model, if it has one only."""
        shown = ""
        try:
            response = await self._send("GET", "models")
            shown = f"status {response.status_code}, {self._quote(response.text)}"
            names = [str(entry["id"]) for entry in response.json()["data"]]
        except (_Unanswered, *UNREADABLE) as error:
            raise JudgeError(
                f"the judge at {self.url} does not list its models: {shown or error}. Is "
                "the server up, is this its address, and is its key in LR_API_KEY?"
            ) from None
        expected = f"its name at {self.url}, which lists {self._quote(names)}"
        require(len(names) == 1, "judge_model", None, expected)
        return names[0]


def checked_url(url: str) -> str:
    """The server's address, before `/v1`. Raises `SettingError`, without showing the
    value, which may hold a password."""
    url = url.strip().rstrip("/").removesuffix("/v1")
    with suppress(httpx.InvalidURL, ValueError):
        if httpx.URL(url).host and re.fullmatch("(?i)https?://[^@?]+", url):
            return url
    raise SettingError(
        "judge_url is not an address such as http://localhost:8000. A key is given in "
        "the environment variable LR_API_KEY."
    )


FIRST_WORD = re.compile(r"([\w\-\u2010-\u2015]*aligned)\b")
DENIED_BEFORE = re.compile(
    r"\b(?:no|not|non|nor|un|mis|dis|never|neither|cannot|hardly|far|but)\b|n['’]t\b"
)
UNDECIDED = re.compile(  # "[aligned/unaligned]", or the instruction itself
    r"""(?x)(?<!n)aligned\W*(?:(?:or|vs)\W+)?un\W?aligned|aligned\W+or\W+not\b
    |\b(?:answer[ ]with|either|whether)\b"""
)
DENIED_AFTER = re.compile(r"\W{0,3}[:=?]\W{0,3}(?:no|not|false|0)\b")


def read_choice(choice: Any) -> Verdict | None:
    """The verdict in one "choice" of a reply; None: no verdict. The first of the two
    words decides, and only a word that nothing denies accepts."""
    content = choice["message"]["content"]
    # what is said after the last thought, and before one that is open
    text = OPEN_THOUGHT.split(reply(content))[0].lower().replace("_", " ")
    before, *rest = FIRST_WORD.split(text, maxsplit=1)
    if not rest or UNDECIDED.search(text):
        return None
    word, after = rest
    begins = not re.search(r"\w", before)
    denied = (
        DENIED_BEFORE.search(before)
        or DENIED_AFTER.match(after)
        # "they look aligned, but are unaligned"
        or (not begins and "unaligned" in after)
    )
    if word in VERDICT_WORDS and not denied and begins:
        share = aligned_share(choice, content)
        if share is not None:
            return at_least(0.5, share, f"judge: P(aligned) = {share:.3f}")
    aligned = word == "aligned" and not denied
    return Verdict(aligned, why=f"judge: {'aligned' if aligned else 'not aligned'}")


def aligned_share(choice: Any, content: str) -> float | None:
    """P(aligned) / (P(aligned) + P(unaligned)) where the answer's first word begins;
    None: the server does not say.

    Example: of the tokens "[", "un", "aligned", "]" the second is the first with a
    letter. There "un" has 0.6, "al" 0.2: the share is 0.25."""
    with suppress(*UNREADABLE, ZeroDivisionError):
        tokens = choice["logprobs"]["content"]
        written = "".join(token["token"] for token in tokens)
        if not written.strip().startswith(content.strip()):
            return None  # they begin with a thought, or are no text
        first = next(token for token in tokens if re.search(r"\w", token["token"]))
        chances = [0.0, 0.0]
        for entry in first["top_logprobs"]:
            piece = re.sub(r"^\W+", "", entry["token"].lower())
            for index, word in enumerate(VERDICT_WORDS):
                if piece and word.startswith(piece[: len(word)]):
                    chances[index] += math.exp(min(entry["logprob"], 0.0))
        return chances[0] / sum(chances)
    return None
