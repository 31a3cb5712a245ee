"""What a policy reads and writes: actions, parser, fact store, prompts; one file a protocol."""

from __future__ import annotations

from collections.abc import Callable

from factagent.errors import ConfigError
from factagent.protocols.autorefine import AutoRefineProtocol
from factagent.protocols.base import AgentProtocol
from factagent.protocols.factagent import FactAgentProtocol
from factagent.protocols.gigpo import GiGPOProtocol
from factagent.protocols.memsearcher import MemSearcherProtocol
from factagent.protocols.prompts import PromptSpec, load_prompt
from factagent.protocols.rag import RagProtocol
from factagent.protocols.react import ReActProtocol
from factagent.protocols.research import ReSearchProtocol
from factagent.protocols.search_r1 import SearchR1Protocol
from factagent.protocols.zerosearch import ZeroSearchProtocol

PROTOCOLS: dict[str, Callable[[PromptSpec], AgentProtocol]] = {
    "factagent": FactAgentProtocol,
    "react": ReActProtocol,
    "search-r1": SearchR1Protocol,
    "research": ReSearchProtocol,
    "autorefine": AutoRefineProtocol,
    "zerosearch": ZeroSearchProtocol,
    "gigpo": GiGPOProtocol,
    "rag": RagProtocol,
    "memsearcher": MemSearcherProtocol,
}


def build_protocol(name: str, prompt: str) -> AgentProtocol:
    """Make a protocol by name with the prompt of that name or path.

    Raises:
        ConfigError: unknown protocol, the prompt cannot be loaded, or it does not fit the protocol.
    """
    if name not in PROTOCOLS:
        raise ConfigError(f"protocol '{name}' is unknown; choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name](load_prompt(prompt))
