"""An executable specification of Raft, independent of `consensus`: a model whose states can be enumerated.

It is written from the Raft paper (figure 2, sections 5 to 7), the thesis (chapter 4) and KIP-595, and does not import
production code. `state` has the states, `rules` the decisions of the paper, `actions` the transitions, and `invariants`
the claims of figure 3. `explorer` searches exhaustively within the bounds of `worlds`, and must find the faults of
`mutants`. `tests/simulation/consensus/trace.py` maps production steps to these actions.
"""
