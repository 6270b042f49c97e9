"""What ``streamq doctor`` asks, and what it makes of the answers. Read commands of bounded cost, but for one trial.

    findings  what is found, and what mends it
    server    product, version, role, memory, persistence, clock
    rights    what the user may do, and what for
    trial     a script and a transaction over two keys, which leave nothing behind
    layout    which streams there are, what their keys hold, and where they lie
    work      groups, consumers, what is pending, what waits for its time
    workers   what workers say of themselves

Plans ask; what judges is plain functions. `streamq._flows.checkup` puts them in order.
"""
