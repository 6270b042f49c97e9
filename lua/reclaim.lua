-- reclaim.lua: take over deliveries whose lease has run out; one page.
--
-- KEYS[1]  stream  T:stream  stream
-- KEYS[2]  dead    T:dead    stream of dead letters
-- KEYS[3]  meta    T:meta    hash; field cursor:reclaim:<group> is where the next page starts
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  least idle time in ms
-- ARGV[4]  most deliveries to take
-- ARGV[5]  most pending entries to look at
-- ARGV[6]  most bytes of bodies to take (the first is taken whatever its size)
-- ARGV[7]  deliveries that are spent: entries with this count are claimed to be dead-lettered, without body
-- ARGV[8]  1 to raise the delivery count now (claiming is the start), 0 to leave it
-- ARGV[9]  least count: entries with a smaller one are passed over
-- ARGV[10] most entries with a single start left to take; more of them are passed over
-- ARGV[11] extra idle time in ms of those with a single start left, beside their crash delay
-- ARGV[12] number of crash delays n
-- ARGV[13..]  n extra idle times in ms, for counts 1, 2, ...; the last one holds for higher counts; then entry IDs to
--             leave out
--
-- Returns  { cursor, claimed, spent, missing, stuck }
--          cursor   entry ID where the next page starts, 0-0 after the last
--          claimed  { entry ID, delivery count, fields } each, now this consumer's, idle time 0
--          spent    { entry ID, delivery count } each, now this consumer's, to be dead-lettered; never one that only
--                   another group handles: it is passed over unseen, so it killed nobody
--          missing  entry IDs whose body was gone: tombstone written, acknowledged
--          stuck    entry IDs whose body is gone, but the tombstone could not be written: left as they were
--
-- An entry has a single start left if it was started before and one more makes it spent. What is passed over stays as it
-- was, and the cursor goes on behind it. Spent entries are never passed over, and wait for min idle time only.
--
-- Atomic because listing, claiming and tombstones as separate requests lose tombstones and return counts that are no
-- longer true. XAUTOCLAIM alone starts at the head for ever, looks at 10 x COUNT entries only, and drops entries without
-- body (facts of Redis 6.2 to 8.6); so XPENDING pages from a kept cursor and XAUTOCLAIM takes one ID at a time.
-- Redis >= 6.2.
-- Uses: ids, groups, records, tombstone

local stream = KEYS[1]
local dead = KEYS[2]
local meta = KEYS[3]
local group = ARGV[1]
local consumer = ARGV[2]
local min_idle = tonumber(ARGV[3])
local want = tonumber(ARGV[4])
local look = tonumber(ARGV[5])
local bytes = tonumber(ARGV[6])
local spent_at = tonumber(ARGV[7])
local raise = ARGV[8] == '1'
local least = tonumber(ARGV[9])
local most_last = tonumber(ARGV[10])
local patience = tonumber(ARGV[11])
local delays = {}
for i = 1, tonumber(ARGV[12]) do delays[i] = tonumber(ARGV[12 + i]) end
local held = {}
for i = 13 + #delays, #ARGV do held[ARGV[i]] = true end

local PAGE = 100
local field = 'cursor:reclaim:' .. group
local now = server_ms()
local dead_kind = redis.call('TYPE', dead).ok
local may_bury = dead_kind == 'stream' or dead_kind == 'none'
local claimed, spent, missing, stuck = {}, {}, {}, {}
local taken, lasts, size = 0, 0, 0

local function is_last(count) return count > 0 and count == spent_at - 1 end

local function is_wanted(count)
  if count >= spent_at then return true end
  return count >= least and not (is_last(count) and lasts >= most_last)
end

local function due(count)
  if count >= spent_at then return min_idle end
  local crash_delay = delays[math.min(count, #delays)] or 0
  return min_idle + crash_delay + (is_last(count) and patience or 0)
end

local function take(id, count, entry)
  local only = only_group(entry[2])
  if count >= spent_at and (not only or only == group) then
    redis.call('XAUTOCLAIM', stream, group, consumer, min_idle, id, 'COUNT', 1, 'JUSTID')
    spent[#spent + 1] = { id, count }
    return true
  end
  local length = size_of(entry)
  if #claimed > 0 and size + length > bytes then return false end
  size = size + length
  redis.call('XAUTOCLAIM', stream, group, consumer, min_idle, id, 'COUNT', 1, 'JUSTID')
  if raise then
    count = count + 1
    redis.call('XCLAIM', stream, group, consumer, 0, id, 'RETRYCOUNT', count, 'JUSTID')
  end
  claimed[#claimed + 1] = { id, count, entry[2] }
  return true
end

-- XAUTOCLAIM would drop an entry without body, so such a one is buried first.
local function bury(id, count, owner)
  if may_bury and tombstone(dead, meta, group, owner, id, count, now) then
    redis.call('XACK', stream, group, id)
    missing[#missing + 1] = id
  else
    stuck[#stuck + 1] = id
  end
end

-- Looks at entries from first to last. Returns where to go on, or nil at the end.
local function walk(first, last)
  local start = first
  while look > 0 do
    local asked = math.min(PAGE, look)
    local rows = redis.call('XPENDING', stream, group, start, last, asked)
    for _, row in ipairs(rows) do
      local id, owner, idle, count = row[1], row[2], row[3], row[4]
      if taken >= want then return id end
      look = look - 1
      if is_wanted(count) and idle >= due(count) and not held[id] then
        local entry = first_entry(stream, id, id)
        if not entry then
          bury(id, count, owner)
        elseif not take(id, count, entry) then
          return id
        else
          taken = taken + 1
          if is_last(count) then lasts = lasts + 1 end
        end
      end
      start = '(' .. id
    end
    if #rows < asked then return nil end
  end
  return string.sub(start, 2)
end

local from = redis.call('HGET', meta, field) or '0-0'
local cursor = walk(from, '+')
if not cursor and from ~= '0-0' and look > 0 then cursor = walk('-', '(' .. from) end
cursor = cursor or '0-0'
if cursor ~= from then redis.pcall('HSET', meta, field, cursor) end
return { cursor, claimed, spent, missing, stuck }
