"""A listing read to its end, or an error: never a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpufleet.providers.errors import ProtocolError
from gpufleet.providers.rest.client import Client, Values
from gpufleet.providers.rest.description import Listing, Paging, Request
from gpufleet.providers.rest.expressions import BadExpression, evaluate, number

MOST_PAGES = 1000


def read_all(client: Client, operation: str, listing: Listing, values: Values) -> list[Any]:
    """Every row of a listing.

    Raises:
        ProtocolError: an answer without the list, a page that comes twice, a listing without end, or one whose count
            is not what the provider announces.
        ProviderRefused: a page could not be read.
    """
    rows: list[Any] = []
    announced: int | None = None
    for body, page in _pages(client, operation, listing, values):
        rows += page
        total = _evaluate(listing.paging.total, body, operation) if listing.paging.total else None
        announced = int(count) if (count := number(total)) is not None else announced
    if announced is not None and announced != len(rows):
        raise ProtocolError(f"the listing ({operation}) announces {announced} rows and has {len(rows)}")
    return rows


def _pages(client: Client, operation: str, listing: Listing, values: Values) -> Iterator[tuple[Any, list[Any]]]:
    paging = listing.paging
    position: Any = paging.first if paging.style in {"offset", "page"} else None
    seen: list[Any] = []
    for _ in range(MOST_PAGES):
        body = client.call(operation, _at(listing, position), values).body
        page = _evaluate(listing.items, body, operation)
        if not isinstance(page, list):
            raise ProtocolError(f"the listing ({operation}) has no list at '{listing.items}'")
        if page and page == seen:
            raise ProtocolError(f"the listing ({operation}) gives the same page twice")
        seen = page
        yield body, page
        position = _next(paging, position, body, page, operation)
        if position is None:
            return
    raise ProtocolError(f"the listing ({operation}) does not end within {MOST_PAGES} pages")


def _next(paging: Paging, position: Any, body: Any, page: list[Any], operation: str) -> Any:
    """Where the next page is; None at the end."""
    if paging.style == "none":
        return None
    if paging.style == "token":
        token = _evaluate(paging.next or "null", body, operation)
        if token is not None and token == position:
            raise ProtocolError(f"the listing ({operation}) gives the same page twice")
        return token or None
    if len(page) < paging.size and (paging.total is None or not page):
        return None
    total = number(_evaluate(paging.total, body, operation)) if paging.total else None
    if paging.style == "offset":
        after = position + len(page)
        return None if total is not None and after >= total else after
    pages_done = position - paging.first + 1
    return None if total is not None and pages_done * paging.size >= total else position + 1


def _at(listing: Listing, position: Any) -> Request:
    paging, request = listing.paging, listing.request
    query = dict(request.query)
    if paging.size_parameter:
        query[paging.size_parameter] = paging.size
    if position is not None:
        query[paging.parameter] = position
    return request.model_copy(update={"query": query})


def _evaluate(expression: str, body: Any, operation: str) -> Any:
    try:
        return evaluate(expression, body)
    except BadExpression as error:
        raise ProtocolError(f"the answer ({operation}) does not have the expected shape: {error}") from None
