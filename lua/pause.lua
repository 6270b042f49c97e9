-- pause.lua: pause a stream, or resume it. Paused, nothing is started; what runs goes on.
--
-- KEYS[1]  meta  T:meta  hash; field paused is 1 while it holds
-- KEYS[2]  wake  T:wake  stream of one entry, on which paused readers wait
-- ARGV[1]  1 to pause, 0 to resume
--
-- Returns  1  changed
--          0  it was so already; nothing was written
--          error WRONGTYPE  a key holds something else; nothing was written
--
-- Atomic because who waits on T:wake must find the new state when it wakes. HDEL of a field that is not there comes first:
-- a script that has written may go on while memory is full, and that is when an operator pauses. Redis >= 6.2.
-- Uses: types

local meta = KEYS[1]
local wake = KEYS[2]
local paused = ARGV[1]

local wrong = check_stream(wake)
if wrong then return wrong end
local now = redis.call('HGET', meta, 'paused')
if (now and '1' or '0') == paused then return 0 end
redis.call('HDEL', meta, '')
redis.call('XADD', wake, 'MAXLEN', 1, '*', 'paused', paused) -- first: it is what can still be refused, for lack of permission
if paused == '1' then redis.call('HSET', meta, 'paused', '1')
else redis.call('HDEL', meta, 'paused') end
return 1
