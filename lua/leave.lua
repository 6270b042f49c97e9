-- leave.lua: remove one consumer, if it holds nothing: its process has stopped, or is dead and its jobs are given back.
--
-- KEYS[1]  stream   T:stream   stream
-- KEYS[2]  workers  T:workers  hash, consumer -> who it is
-- KEYS[3]  tick     T:tick:<role>  string, the token of who moves due jobs; given up if it is this consumer's
-- ARGV[1]  group
-- ARGV[2]  consumer
--
-- Returns   1  removed
--           0  there is no such consumer, or no such group; T:workers does not know it any more either
--          -1  it holds pending entries, and stays
--          error WRONGTYPE  T:workers holds something else; nothing was written
--
-- Atomic because XGROUP DELCONSUMER throws away what the consumer has pending: between the look and the removal a read of
-- its own, on its way when the process died, must not arrive. One that arrives later makes the consumer again.
-- Redis >= 6.2.
-- Uses: groups, types

local stream = KEYS[1]
local workers = KEYS[2]
local tick = KEYS[3]
local group = ARGV[1]
local consumer = ARGV[2]

local wrong = check_hash(workers)
if wrong then return wrong end
if redis.pcall('GET', tick) == consumer then redis.call('UNLINK', tick) end -- one that ends may take long about it
local rows, refused = consumer_rows(stream, group)
if refused then return refused end
local known = false
for _, row in ipairs(rows) do
  if row.name == consumer then
    if row.pending > 0 then return -1 end
    known = true
  end
end
redis.call('HDEL', workers, consumer) -- first: what is written after it is not refused for lack of memory
if not known then return 0 end
redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
return 1
