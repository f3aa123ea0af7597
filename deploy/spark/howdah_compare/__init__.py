"""The statistics of `howdah compare`, in the standard library's Python, so that they run on any cluster.

    executions.sql   what is counted and sampled, by the engine
    query.py         the figures of one query, from its row; runs where the data is
    shift.py         the shift between two samples, and the interval of a ratio of means
    between_runs.py  the shifts between several runs on each side
    distributions.py Student's t, Fisher's F, the derivatives of ln Γ
    compare.py       the verdicts, from the figures of all queries
    document.py      the comparison as JSON
    text.py          the comparison for people

The names and the order of the operations follow `crates/compare`, which explains the methods: equal input gives equal
figures. A change there is a change here.
"""
