-- tick.lua: what is to be done now? A worker asks at each tick; whoever takes a role's token does its work this time.
--
-- KEYS[1]   meta  T:meta         hash; field paused
-- KEYS[2..] tick  T:tick:<role>  strings, one a role; each is gone after its period
-- ARGV[1]  consumer
-- ARGV[2..]  per role its period in ms
--
-- Returns  { paused, taken, ... }
--          paused  1 while the stream is paused, else 0
--          taken   per role 1 if its token is the caller's now, else 0
--
-- Atomic because it costs nothing: one request for all roles. Nothing is held, so nothing has to be recovered: a token
-- whose taker died is gone with its period. HDEL of a field that is not there comes first: a script that has written may
-- go on while memory is full, and reclaiming is what frees memory. Redis >= 6.2.

local meta = KEYS[1]
local consumer = ARGV[1]

redis.call('HDEL', meta, '')
local answer = { redis.call('HEXISTS', meta, 'paused') }
for i = 2, math.min(#KEYS, #ARGV) do
  local taken = redis.call('SET', KEYS[i], consumer, 'NX', 'PX', ARGV[i])
  answer[i] = taken and 1 or 0
end
return answer
