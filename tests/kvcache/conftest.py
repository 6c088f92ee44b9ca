"""The conservation law is checked after every test, in every cache that is alive, without the test asking for it."""

from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import pytest

from lr.kvcache.cache import PagedKVCache


@pytest.fixture(scope="session", autouse=True)
def caches() -> Iterator["WeakSet[PagedKVCache]"]:
    """Every cache that is built while the tests run, as long as somebody holds it."""
    seen: WeakSet[PagedKVCache] = WeakSet()
    build = PagedKVCache.__init__

    def build_and_remember(self: PagedKVCache, **settings: Any) -> None:
        build(self, **settings)
        seen.add(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PagedKVCache, "__init__", build_and_remember)
        yield seen


@pytest.fixture(autouse=True)
def conservation_law(caches: "WeakSet[PagedKVCache]") -> Iterator[None]:
    """After the test: free + used = total, each refcount is the number of holders, and no append was left open."""
    yield
    for cache in list(caches):
        cache.check()
        assert cache.open_append is None
