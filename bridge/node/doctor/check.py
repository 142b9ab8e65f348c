"""One thing that `garlicfarm doctor` looked at: how it is, and what to do about it."""

from dataclasses import dataclass
from enum import Enum


class Result(Enum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, and what to do about it."""

    name: str
    result: Result
    text: str
    action: str = ""
