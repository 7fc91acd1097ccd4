"""A parent session that delegates to two child sessions, each with its own context and cost."""

from __future__ import annotations

import oakleaf
from oakleaf import ScriptedModel, ToolCall, ToolContext, assistant, draw_tree, system


@oakleaf.tool(effect="idempotent")
async def research(city: str, ctx: ToolContext) -> str:
    """Research a city."""
    child = ScriptedModel([f"{city}: three days are enough."])
    return await ctx.task(
        f"What about {city}?", agent="researcher", seeds=[system("Be brief.")], models=[child]
    )


def main() -> None:
    with oakleaf.open("memory:") as store:
        session = store.start("planner", [system("You plan trips.")])
        both = assistant(
            ToolCall("c1", "research", {"city": "Lisbon"}), ToolCall("c2", "research", {"city": "Porto"})
        )
        session.send_sync("Plan a trip.", model=ScriptedModel([both, "Three days each."]), tools=[research])
        print(draw_tree(session))
        tasks = store.all_sessions(parent_session=session.session_id, relation="task")
        for child in (store.session(row.session_id) for row in tasks):
            print(f"\n{child.session_id}, started by message {child.row.parent_seq}:\n{draw_tree(child)}")
        own, tree = session.usage(), session.usage("tree")
        print(f"\ncalls: {own.calls} of its own, {tree.calls} with its children")
        assert (own.calls, tree.calls) == (2, 4)


if __name__ == "__main__":
    main()
