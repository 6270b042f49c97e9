"""stub"""
from __future__ import annotations
from streamq._requests import Plan
def leave(spec, consumer) -> Plan[bool]:
    return True
    yield
