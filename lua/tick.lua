-- tick.lua: what is to be done now? A worker asks at each tick; whoever takes a role's token does its work this time.
--
-- KEYS[1]  stream   T:stream       stream
-- KEYS[2]  meta     T:meta         hash; field paused
-- KEYS[3]  workers  T:workers      hash, consumer -> <time in ms> <beat>
-- KEYS[4]  reclaim  T:tick:<role>  string, the token of who reclaims for the group; gone after its period
-- KEYS[5..] tick    T:tick:<role>  strings, one per other role
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  beat: what the worker says of itself; '' writes none
-- ARGV[4]  period of the reclaimer's token in ms; 0 does not try for it
-- ARGV[5..]  per other role its period in ms
--
-- Returns  { paused, reclaim, taken, ... }
--          paused   1 while the stream is paused, else 0
--          reclaim  1 if that token is the caller's now, else 0: always where the group has nothing pending
--          taken    per other role 1 if its token is the caller's now, else 0
--
-- Atomic because it costs nothing: one request for all roles. Nothing is held, so nothing has to be recovered: a token
-- whose taker died is gone with its period. HDEL of a field that is not there comes first: a script that has written may
-- go on while memory is full, and reclaiming is what frees memory. A beat that cannot be written is left out: whoever
-- asks has work to do, and beats are only for who looks. Redis >= 6.2.
-- Uses: records

local stream = KEYS[1]
local meta = KEYS[2]
local workers = KEYS[3]
local group = ARGV[1]
local consumer = ARGV[2]
local beat = ARGV[3]

local function take(token, period)
  return redis.call('SET', token, consumer, 'NX', 'PX', period) and 1 or 0
end

-- Of a stream or group that is not there, and of a key of another type: no.
local function has_pending()
  local rows = redis.pcall('XPENDING', stream, group, '-', '+', 1)
  return not rows.err and #rows > 0
end

redis.call('HDEL', meta, '')
if beat ~= '' then redis.pcall('HSET', workers, consumer, string.format('%.0f ', server_ms()) .. beat) end
local answer = { redis.call('HEXISTS', meta, 'paused'), 0 }
if ARGV[4] ~= '0' and has_pending() then answer[2] = take(KEYS[4], ARGV[4]) end
for i = 5, math.min(#KEYS, #ARGV) do answer[i - 2] = take(KEYS[i], ARGV[i]) end
return answer
