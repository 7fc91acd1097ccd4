"""The agent on LangGraph: a graph with its SQLite checkpointer, resumed with `invoke(None)`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bank import QUESTION, refund
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

FOLDER = Path(sys.argv[1])


@tool
def refund_order(order: int) -> str:
    """Give the money back."""
    return refund(FOLDER, order)


def model(state: MessagesState) -> dict[str, list[BaseMessage]]:
    if isinstance(state["messages"][-1], ToolMessage):
        return {"messages": [AIMessage("Order 41 is refunded.")]}
    call = {"name": "refund_order", "args": {"order": 41}, "id": "call_1", "type": "tool_call"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


graph = StateGraph(MessagesState)
graph.add_node("model", model)
graph.add_node("tools", ToolNode([refund_order]))
graph.set_entry_point("model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")

with SqliteSaver.from_conn_string(str(FOLDER / "agent.db")) as saver:
    agent: Any = graph.compile(checkpointer=saver)
    config = {"configurable": {"thread_id": "case-41"}}
    is_open = bool(agent.get_state(config).next)
    state = agent.invoke(None if is_open else {"messages": [HumanMessage(QUESTION)]}, config)
    print(state["messages"][-1].content)
