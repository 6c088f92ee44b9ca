"""A judge behind an OpenAI-compatible server (vLLM, SGLang, llama.cpp, ...).

The official tool judges so: its judge runs in a server of its own, and each pair of
steps is one request. The prompt is that of `lr/spec/verifiers/judge.py`; the answer is
read as text, so a served judge has no score and no threshold.

A request takes at most `timeout` seconds and is sent at most `attempts` times. A pair
whose attempts all fail is rejected. After `FAILURES` such pairs in a row the judge is
lost: the run ends, or, if the user wants it so, continues and rejects every draft step.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from lr.errors import LRError, SettingError
from lr.spec.verifiers.base import Pair, Requires, Verifier
from lr.spec.verifiers.judge import JUDGE_PROMPT, Decode, unless_equal
from lr.types import Verdict, require

if TYPE_CHECKING:
    import httpx

JudgeLost = Literal["stop", "reject"]
FAILURES = 3  # failed pairs in a row, each after all its attempts, that lose the judge
PAUSE = 0.5  # seconds before the second attempt; doubles after that
BUSY = (408, 429)  # with 5xx: statuses that another attempt may mend
ANSWER_TOKENS = 16  # "[unaligned]" takes about five
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


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
        require(timeout > 0, "judge_timeout", timeout, "seconds, above 0")
        require(1 <= attempts <= 100, "judge_attempts", attempts, "1 to 100")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.decode = decode
        self.timeout = timeout
        self.attempts = attempts
        self.lost = lost
        self.passes = 0
        self.failures = 0  # pairs that failed since the last answered one
        self.given_up: str | None = None  # why the judge is no longer asked
        self.extra: dict[str, Any] = NO_THINKING
        self._loop = asyncio.new_event_loop()
        self._http = _client(self.url, api_key)
        # The requests run in a thread of their own: Ctrl-C in the main thread need not
        # wait for a silent server, and a notebook has an event loop already.
        threading.Thread(
            target=self._loop.run_forever, name="judge", daemon=True
        ).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
        self.model = model or self._only_model()

    def judge(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Judge all pairs at once. Raises `JudgeError` if that ends the run."""
        return unless_equal(pairs, self.decode, self._judge_others)

    def _judge_others(self, pairs: Sequence[Pair]) -> list[Verdict]:
        verdicts: list[Verdict] = self._wait(self._judge_all(pairs))
        return verdicts

    async def _judge_all(self, pairs: Sequence[Pair]) -> list[Verdict]:
        return list(await asyncio.gather(*map(self._judge_pair, pairs)))

    async def _judge_pair(self, pair: Pair) -> Verdict:
        first = self.decode(pair.target_step.tokens).strip()
        second = self.decode(pair.draft.tokens).strip()
        if self.given_up is not None:
            return Verdict(aligned=False, why=self.given_up, failed=True)
        question = JUDGE_PROMPT.format(first=first, second=second)
        self.passes += 1
        try:
            answer = await self._ask(question)
        except _Unanswered as error:
            return self._rejected(f"the judge at {self.url} {error}")
        self.failures = 0
        return read_answer(answer)

    def _rejected(self, reason: str) -> Verdict:
        """The verdict of a pair that failed, unless the judge is now lost."""
        self.failures += 1
        if self.failures >= FAILURES:
            reason = f"{reason} ({self.failures} pairs in a row)"
            if self.lost == "stop":
                raise JudgeError(f"{reason}. Is the server up?")
            self.given_up = f"not asked any more: {reason}"
        return Verdict(aligned=False, why=reason, failed=True)

    async def _ask(self, question: str) -> str:
        """The judge's answer. Raises `_Unanswered` after the last attempt."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": ANSWER_TOKENS,
        }
        failure = ""
        for attempt in range(self.attempts):
            if attempt:
                await asyncio.sleep(PAUSE * 2 ** (attempt - 1))
            try:
                reply = await self._exchange("POST", "chat/completions", body)
                return str(reply["choices"][0]["message"]["content"])
            except _Unanswered as error:
                failure = str(error)
            except (KeyError, IndexError, TypeError):
                failure = f"sent no answer ({str(reply)[:100]!r})"
        raise _Unanswered(f"{failure}, {self.attempts} times")

    async def _exchange(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> Any:
        """The JSON answer to one request. Raises `_Unanswered` if another attempt may
        succeed, else `JudgeError`."""
        import httpx

        sent = None if body is None else body | self.extra
        try:
            async with asyncio.timeout(self.timeout):
                response = await self._http.request(method, f"/v1/{path}", json=sent)
        except TimeoutError:
            raise _Unanswered(f"was silent for {self.timeout:g} seconds") from None
        except httpx.HTTPError as error:
            message = str(error) or type(error).__name__
            raise _Unanswered(f"did not answer ({message})") from error
        status = response.status_code
        if status >= 500 or status in BUSY:
            raise _Unanswered(f"answered with status {status}")
        if status == 400 and sent != body:
            self.extra = {}  # this server takes only OpenAI's own fields
            return await self._exchange(method, path, body)
        if status != 200:
            raise JudgeError(
                f"the judge at {self.url} refused a request with status {status}: "
                f"{response.text[:300]!r}. Check the address, the judge's name on the "
                "server and the key (environment variable LR_API_KEY)."
            )
        try:
            return response.json()
        except ValueError as error:
            raise _Unanswered(f"sent no JSON ({response.text[:100]!r})") from error

    def _only_model(self) -> str:
        """The name of the server's model, if it has one only."""
        try:
            listed = self._wait(self._exchange("GET", "models"))
            names = [entry["id"] for entry in listed["data"]]
        except (_Unanswered, KeyError, TypeError) as error:
            raise JudgeError(
                f"the judge at {self.url} does not list its models: {error}. "
                "Is the server up, and is this its address?"
            ) from error
        expected = f"one of {', '.join(names)}, the models of {self.url}"
        require(len(names) == 1, "judge_model", None, expected)
        return str(names[0])

    def _wait(self, work: Any) -> Any:
        """The result of `work` in the thread of the requests; Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()


class _Unanswered(Exception):
    """One attempt failed; another may succeed."""


def _client(url: str, api_key: str | None) -> httpx.AsyncClient:
    import httpx  # here: it takes 0.1 s, and only served judges need it

    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise SettingError(
            f"judge_url is {url!r}, expected an address such as http://localhost:8000."
        )
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    limits = httpx.Limits(max_connections=64)
    # asyncio.timeout bounds a request; the environment's proxies are not for localhost
    return httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=None, trust_env=False
    )


def read_answer(answer: str) -> Verdict:
    """The verdict that a judge's answer states. Anything but one of the two words
    rejects."""
    text = answer.lower()
    if "unaligned" in text:
        return Verdict(aligned=False, why="judge: unaligned")
    if "aligned" in text:
        return Verdict(aligned=True, why="judge: aligned")
    return Verdict(aligned=False, why=f"the judge answers something else: {answer!r}")
