"""``streamq inspect --watch``: the same figures again and again, full screen at a terminal or a line of JSON each.

- `state`: what is shown, and what a look or a key makes of it. Values and functions, no I/O.
- `keys`: what the terminal sends, as names of keys.
- `screen`: the lines to show, from the state and the size.
- `terminal`: the terminal, taken over and given back as it was.
- `watch`: looks, keys and drawing at once, in one event loop.
- `feed`: the lines of JSON.
"""
