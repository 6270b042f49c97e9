-- tick.lua: what is to be done now? A worker asks at each tick; whoever takes a role's token does its work this time.
--
-- KEYS[1]  stream     T:stream          stream
-- KEYS[2]  scheduled  T:scheduled       sorted set, timer ID -> due time
-- KEYS[3]  jobs       T:scheduled:jobs  hash, timer ID -> packed entry
-- KEYS[4]  meta       T:meta            hash; fields paused and format
-- KEYS[5]  workers    T:workers         hash, consumer -> <time in ms> <beat>
-- KEYS[6]  reclaim    T:tick:<role>     string, the token of who reclaims for the group; gone after its period
-- KEYS[7]  promote    T:tick:<role>     string, the token of who moves due jobs; its owner's next tick makes it last
-- KEYS[8..] tick      T:tick:<role>     strings, one per other role
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  beat: what the worker says of itself; '' writes none
-- ARGV[4]  period of the reclaimer's token in ms; 0 does not try for it
-- ARGV[5]  period of the promoter's token in ms; 0 does not try for it
-- ARGV[6..]  per other role its period in ms
--
-- Returns  { paused, wait, reclaim, promote, taken, ... }
--          paused   1 while the stream is paused, else 0
--          wait     ms until the first scheduled job is due, 0 if promote.lua has something to do, -1 if there is none
--          reclaim  1 if that token is the caller's now, else 0: always where the group has nothing pending
--          promote  1 if that token is the caller's now, else 0
--          taken    per other role 1 if its token is the caller's now, else 0
--
-- Atomic because it costs nothing: one request for all roles. Nothing is held, so nothing has to be recovered: a token
-- whose taker died is gone with its period. The promoter's lasts while its owner ticks, since it sleeps until something is
-- due, where all the others would have to sleep along; but whoever finds a job long overdue takes it over. HDEL of a
-- field that is not there comes first: a script that has written may go on while memory is full, and reclaiming is what
-- frees memory. A beat that cannot be written is left out: whoever
-- asks has work to do, and beats are only for who looks. Redis >= 6.2.
-- Uses: records, types, timers, format

local stream = KEYS[1]
local scheduled = KEYS[2]
local jobs = KEYS[3]
local meta = KEYS[4]
local workers = KEYS[5]
local group = ARGV[1]
local consumer = ARGV[2]
local beat = ARGV[3]

local function take(token, period)
  return redis.call('SET', token, consumer, 'NX', 'PX', period) and 1 or 0
end

local LATE_MS = 500

-- Whether a job lies there for so long: then who promotes is dead, or stands still.
local function is_late()
  local due = first_due(scheduled)
  return due and server_ms() - due > LATE_MS
end

local function keep(token, period, paused)
  local owner = redis.pcall('GET', token)
  if owner == consumer then return redis.call('PEXPIRE', token, period) end
  if type(owner) == 'string' and paused == 0 and is_late() then redis.call('UNLINK', token) end
  return take(token, period)
end

-- Of a stream or group that is not there, and of a key of another type: no.
local function has_pending()
  local rows = redis.pcall('XPENDING', stream, group, '-', '+', 1)
  return not rows.err and #rows > 0
end

-- More entries than times: some lost theirs, and promote.lua takes them out. A key of another type is its to report, too.
local function wait_ms()
  local entries, times = redis.pcall('HLEN', jobs), redis.pcall('ZCARD', scheduled)
  if type(entries) ~= 'number' or type(times) ~= 'number' or entries > times then return 0 end
  return wait_for_first(scheduled, server_ms())
end

redis.call('HDEL', meta, '')
note_format(meta)
if beat ~= '' then redis.pcall('HSET', workers, consumer, string.format('%.0f ', server_ms()) .. beat) end
local paused = redis.call('HEXISTS', meta, 'paused')
local answer = { paused, wait_ms(), 0, 0 }
if ARGV[4] ~= '0' and has_pending() then answer[3] = take(KEYS[6], ARGV[4]) end
if ARGV[5] ~= '0' then answer[4] = keep(KEYS[7], ARGV[5], paused) end
for i = 8, math.min(#KEYS, #ARGV + 2) do answer[i - 3] = take(KEYS[i], ARGV[i - 2]) end
return answer
