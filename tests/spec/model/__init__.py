"""An executable specification of Raft, independent of `consensus`: a model whose states can be enumerated.

It is written from the Raft paper (figure 2, sections 5 to 7), the thesis (chapter 4) and KIP-595, and does not import
production code. `state` has the states, `rules` the decisions of the paper, `actions` the transitions, `invariants` the
claims of figure 3, `explorer` the exhaustive search, `worlds` the bounds, and `mutants` the faults that the search must
find. `tests/simulation/consensus/trace.py` maps production steps to these actions.
"""
