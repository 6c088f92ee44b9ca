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

from __future__ import annotations

import asyncio
import math
import re
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from lr.errors import LRError, SettingError
from lr.spec.checks import SURROGATE
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.judge import (
    FAILURES,
    JUDGE_PROMPT,
    Decode,
    after_thoughts,
    at_least,
    fill_prompt,
    unless_equal,
)
from lr.types import Verdict, require

if TYPE_CHECKING:
    import httpx

JudgeLost = Literal["stop", "reject"]
WORDS = ("aligned", "unaligned")
PAUSE = 0.5  # seconds before the second attempt; doubles, up to the timeout
BUSY = (408, 429)  # with 5xx: statuses that another attempt may mend
UNFIT = (400, 413, 422)  # the request has a field or a length that the server refuses
SHORT = {"temperature": 0, "max_tokens": 16}  # "[unaligned]" takes about five
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
FORMS: tuple[dict[str, Any], ...] = (
    SHORT | NO_THINKING | {"logprobs": True, "top_logprobs": 20},
    SHORT | NO_THINKING,
    SHORT,
    {"max_completion_tokens": 2048},  # of a model that cannot but think
)
"""The settings of a request. If a server refuses one form, it gets the next."""


class JudgeError(LRError):
    """The judge's server cannot be reached, refuses a request, or fails too often."""


class ServedJudge(Verifier):
    """Asks the model `model` of the server at `url` (before `/v1`) about each pair.

    `model` None: the server's only one. `decode` turns the target's tokens into text.
    """

    name = "judge"
    requires = Requires.TARGET_STEP

    def __init__(
        self,
        url: str,
        decode: Decode,
        *,
        model: str | None = None,
        timeout: float = 60.0,
        attempts: int = 3,
        lost: JudgeLost = "stop",
        api_key: str | None = None,
    ) -> None:
        require(0 < timeout < math.inf, "judge_timeout", timeout, "seconds, above 0")
        require(1 <= attempts <= 100, "judge_attempts", attempts, "1 to 100")
        self.url = checked_url(url)
        self.decode = decode
        self.timeout = timeout
        self.attempts = attempts
        self.lost = lost
        self.passes = 0
        self.failures = 0  # pairs without a verdict since the last one with a verdict
        self.failure = ""  # why the last of them has none
        self.form = 0  # the first of `FORMS` that the server may take
        self.answered = False  # whether it has taken one
        self._key = checked_key(api_key)
        self._http = _client(self.url, self._key, timeout)
        self._loop = asyncio.new_event_loop()
        # The requests run in a thread of their own: Ctrl-C in the main thread need not
        # wait for a silent server, and a notebook has an event loop already.
        threading.Thread(
            target=self._loop.run_forever, name="judge", daemon=True
        ).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
        self.model = model or self._only_model()
        fits = not SURROGATE.search(self.model)
        require(fits, "judge_model", self.model, "a name in Unicode")

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Judge all pairs at once. Raises `JudgeError` if that ends the run."""
        return unless_equal(
            pairs, self.decode, lambda others: self._wait(self._judge_all(others))
        )

    async def _judge_all(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return list(await asyncio.gather(*map(self._judge_pair, pairs)))

    async def _judge_pair(self, pair: Pair) -> Verdict:
        """The verdict. A pair that gets none is rejected, unless the judge is lost."""
        if self.lost == "stop" or self.failures < FAILURES:
            self.passes += 1
            try:
                verdict = await self._ask(pair)
            except _Unanswered as error:
                self.failures += 1
                self.failure = f"the judge at {self.url} {error.args[0]}"
                if self.failures >= FAILURES and self.lost == "stop":
                    raise JudgeError(
                        f"{self.failure} ({self.failures} pairs in a row). Is the server "
                        f"up, and is {self._quote(self.model)} its name for a judge "
                        "that answers without a thought?"
                    ) from None
            else:
                self.failures = 0
                return verdict
        return Verdict(aligned=False, why=self.failure, failed=True)

    async def _ask(self, pair: Pair) -> Verdict:
        """The judge's verdict. Raises `_Unanswered` after the last attempt."""
        target = self.decode(pair.target_step.tokens).strip()
        draft = self.decode(pair.draft.tokens).strip()
        question = fill_prompt(JUDGE_PROMPT, target, draft)
        messages = [{"role": "user", "content": question}]
        body = {"model": self.model, "messages": messages}
        reason = ""
        pause: float | None = 0.0
        for attempt in range(self.attempts):
            if attempt:
                pause = pause or PAUSE * 2 ** (attempt - 1)
                await asyncio.sleep(min(pause, self.timeout))
            try:
                reply = await self._exchange("POST", "chat/completions", body)
            except _Unanswered as error:
                reason, pause = error.args
                if pause is None:
                    raise
                continue
            with suppress(LookupError, TypeError, AttributeError):
                reply = reply["choices"][0]
                verdict = read_choice(reply)
                if verdict is not None:
                    return verdict
            reason = f"sent no verdict: {self._quote(reply)}"
        raise _Unanswered(f"{reason}, {self.attempts} times", None)

    async def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> Any:
        """The JSON answer to one request. Raises `_Unanswered` if this pair, or this
        attempt, has no answer, and `JudgeError` if no pair will have one."""
        import httpx

        form = self.form
        sent = None if body is None else body | FORMS[form]
        # A silent server may still be working. Another request would only have to wait
        # behind this one, so this one waits as long as all attempts may take.
        patience = self.timeout * self.attempts
        try:
            async with asyncio.timeout(patience):
                response = await self._http.request(method, f"/v1/{path}", json=sent)
        except TimeoutError:
            raise _Unanswered(f"was silent for {patience:g} seconds", None) from None
        except httpx.HTTPError as error:
            reason = self._quote(str(error) or type(error).__name__)
            raise _Unanswered(f"did not answer: {reason}", 0.0) from None
        status = response.status_code
        refusal = f"answered with status {status}: {self._quote(response.text)}"
        # Some servers fail where log-probabilities are asked for.
        unfit = status in UNFIT or (status == 500 and form == 0 and not self.answered)
        if unfit and body is not None:
            if form == self.form and self.answered:  # this pair is too long for it
                raise _Unanswered(refusal, None)
            if form + 1 < len(FORMS):
                self.form = max(self.form, form + 1)
                return await self._exchange(method, path, body)
        if status >= 500 or status in BUSY:
            seconds = response.headers.get("retry-after", "")
            raise _Unanswered(refusal, float(seconds) if seconds.isdecimal() else 0.0)
        if status != 200:
            raise JudgeError(
                f"the judge at {self.url} {refusal}. Check the address, the judge's "
                "name on the server and the key (environment variable LR_API_KEY)."
            )
        self.answered |= body is not None
        try:
            return response.json()
        except (ValueError, RecursionError):
            reason = f"sent no JSON: {self._quote(response.text)}"
            raise _Unanswered(reason, 0.0) from None

    def _quote(self, text: object) -> str:
        """A text of the server for a message: short, and without the key."""
        shown = str(text).replace("\\/", "/")  # so some write a slash in JSON
        if self._key:
            shown = shown.replace(self._key, "(the key)")
        return repr(shown[:300])

    def _only_model(self) -> str:
        """The name of the server's model, if it has one only."""
        try:
            listed = self._wait(self._exchange("GET", "models"))
            names = [str(entry["id"]) for entry in listed["data"]]
        except (_Unanswered, LookupError, TypeError) as error:
            raise JudgeError(
                f"the judge at {self.url} does not list its models: {error.args[0]}. "
                "Is the server up, and is this its address?"
            ) from None
        expected = f"its name at {self.url}, which lists {self._quote(names)}"
        require(len(names) == 1, "judge_model", None, expected)
        return names[0]

    def _wait(self, work: Any) -> Any:
        """The result of `work` in the thread of the requests; Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()


class _Unanswered(Exception):
    """No answer: why, and after how many seconds to ask again (0: soon, None:
    never)."""


def checked_key(key: str | None) -> str:
    """The key without outer white space; "" for none. Raises `SettingError` for what is
    no key, without showing it."""
    key = (key or "").strip()
    if re.fullmatch(r"[!#-&(-\[\]-~]*", key):
        return key
    raise SettingError(
        "LR_API_KEY (api_key) holds a blank, a quote, a backslash or a character outside "
        "ASCII; expected the key alone, as the server's owner gave it."
    )


def checked_url(url: str) -> str:
    """The server's address, before `/v1`. Raises `SettingError`, without showing the
    value, which may hold a password."""
    import httpx  # here: it takes 0.1 s, and only served judges need it

    with suppress(httpx.InvalidURL, ValueError):
        url = url.strip().rstrip("/").removesuffix("/v1")
        parsed = httpx.URL(url)
        fits = parsed.scheme in ("http", "https") and bool(parsed.host)
        if fits and "@" not in url and not parsed.query:
            return url
    raise SettingError(
        "judge_url is not an address such as http://localhost:8000. A key is given in "
        "the environment variable LR_API_KEY."
    )


def _client(url: str, key: str, timeout: float) -> httpx.AsyncClient:
    """What sends requests to the address. `asyncio.timeout` bounds them; `timeout` is
    for the connection."""
    import httpx

    # Proxies of the environment are for other machines: a client with a transport of
    # its own uses none.
    is_near = httpx.URL(url).host in ("localhost", "127.0.0.1", "::1")
    try:
        return httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(None, connect=timeout),
            transport=httpx.AsyncHTTPTransport() if is_near else None,
        )
    except (ValueError, ImportError, OSError):  # their messages may hold a password
        raise SettingError(
            "the environment's HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or SSL_CERT_FILE cannot "
            "be used; expected an address such as http://proxy:3128, or a file."
        ) from None


FIRST_WORD = re.compile(r"[\w\-\u2010-\u2015]*aligned\b")
DENIED_BEFORE = re.compile(
    r"\b(?:no|not|non|nor|un|mis|dis|never|neither|cannot|hardly|far|but)\b|n['’]t\b"
)
DENIED_AFTER = re.compile(r"\W{0,3}[:=?]\W{0,3}(?:no|not|false|0)\b")


def read_choice(choice: Any) -> Verdict | None:
    """The verdict in one "choice" of a reply; None: no verdict. The first of the two
    words decides, and only a word that nothing denies accepts."""
    content = choice["message"]["content"]
    text = after_thoughts(content)[0].lower().replace("_", " ")
    word = FIRST_WORD.search(text)
    if word is None:
        return None
    before = text[: word.start()]
    denied = DENIED_BEFORE.search(before) or DENIED_AFTER.match(text, word.end())
    if word[0] in WORDS and not denied and not re.search(r"\w", before):
        share = aligned_share(choice, content)
        if share is not None:
            return at_least(0.5, share, f"judge: P(aligned) = {share:.3f}")
    aligned = word[0] == "aligned" and not denied
    return Verdict(aligned, why="judge: aligned" if aligned else "judge: not aligned")


def aligned_share(choice: Any, content: str) -> float | None:
    """P(aligned) / (P(aligned) + P(unaligned)) where the answer's first word begins;
    None: the server does not say.

    Example: of the tokens "[", "un", "aligned", "]" the second is the first with a
    letter. There "un" has 0.6, "al" 0.2: the share is 0.25."""
    with suppress(LookupError, TypeError, AttributeError):
        tokens = choice["logprobs"]["content"]
        written = "".join(token["token"] for token in tokens)
        if not written.strip().startswith(content.strip()):
            return None  # they begin with a thought, or are no text
        first = next(token for token in tokens if re.search(r"\w", token["token"]))
        chances = dict.fromkeys(WORDS, 0.0)
        for entry in first["top_logprobs"]:
            piece = re.sub(r"^\W+", "", entry["token"].lower())
            for word in WORDS:
                if piece and (word.startswith(piece) or piece.startswith(word)):
                    chances[word] += math.exp(min(entry["logprob"], 0.0))
        if any(chances.values()):
            return chances["aligned"] / sum(chances.values())
    return None
