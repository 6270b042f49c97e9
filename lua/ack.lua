-- ack.lua: acknowledge a batch of deliveries, and remember the job IDs among them that must be remembered.
--
-- KEYS[1]      stream  T:stream         stream
-- KEYS[2]      meta    T:meta           hash, counters
-- KEYS[3..6]   ids     T:ids:<slice>    hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[7..10]  done    T:done:<slice>   hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  retention, delete or keep
-- ARGV[4]  slice length in ms
-- ARGV[5]  number of entries n, 1 to 500
-- ARGV[6]  first entry ID
-- ARGV[7]  last entry ID
-- ARGV[8]  all n entry IDs, none twice, joined by blanks: one argument is cheaper to send and to take than n. Ascending;
--            in another order the answers are the same, but found one by one
-- ARGV[9]  for each entry that is more than a plain first delivery, three words: its place among the IDs, delivery count,
--            kind (generated or chosen); all joined by blanks. Not given if there is none
-- ARGV[10..]  for each of these two values: job ID or '' (nothing to remember), result
--
-- Returns  per entry  1   acknowledged
--                     0   not pending any more; nothing was written for it
--                    -1   another consumer's, or a later delivery; nothing was written for it
--          error WRONGTYPE  a slice of T:ids or T:done is no hash; nothing was written
--
-- Atomic because a job must be done exactly when its ID is remembered as done. XACK comes first of the writes, so that it
-- works while memory is full; what comes after it cannot fail: the types were checked. Redis >= 6.2.
-- Uses: fence, records, ids, groups, settled

local stream = KEYS[1]
local meta = KEYS[2]
local ids = { KEYS[3], KEYS[4], KEYS[5], KEYS[6] }
local done = { KEYS[7], KEYS[8], KEYS[9], KEYS[10] }
local group = ARGV[1]
local consumer = ARGV[2]
local retention = ARGV[3]
local slice_ms = tonumber(ARGV[4])
local n = tonumber(ARGV[5])

-- The IDs, a code for each, and the IDs of those that are MINE. If what the consumer holds there is just the batch, no ID
-- needs a look by itself.
local function fence_batch(first, last, joined, counts)
  local rows = rows_between(stream, group, consumer, n, first, last)
  local all, codes, mine = {}, {}, {}
  if #rows == n then
    local same = true
    for i = 1, n do
      local row = rows[i]
      all[i], codes[i] = row[1], MINE
      if row[4] ~= (counts[i] or 1) then same = false break end
    end
    if same and table.concat(all, ' ') == joined then return all, codes, all end
  end
  local held, i = counts_of(rows), 0
  for id in string.gmatch(joined, '[^ ]+') do
    i = i + 1
    all[i], codes[i] = id, fence_held(held, stream, group, consumer, id, counts[i] or 1)
    if codes[i] == MINE then mine[#mine + 1] = id end
  end
  return all, codes, mine
end

-- What is to be remembered, one place a note in each.
local counts, places, kinds, remembered, results = {}, {}, {}, {}, {}
local values, at = { unpack(ARGV, 10, #ARGV) }, 1
for place, count, kind in string.gmatch(ARGV[9] or '', '(%d+) (%d+) (%a+)') do
  place = tonumber(place)
  if count ~= '1' then counts[place] = tonumber(count) end
  if values[at] ~= '' then
    local i = #places + 1
    places[i], kinds[i], remembered[i], results[i] = place, kind, values[at], values[at + 1]
  end
  at = at + 2
end

if #places > 0 then
  local wrong = check_slices(ids) or check_slices(done)
  if wrong then return wrong end
end

local entry_ids, codes, mine = fence_batch(ARGV[6], ARGV[7], ARGV[8], counts)
if #mine == 0 then return codes end

redis.call('XACK', stream, group, unpack(mine))
local others = (retention == 'delete' or #places > 0) and other_groups(stream, group)
if retention == 'delete' then delete_settled(stream, others, mine) end
redis.pcall('HINCRBY', meta, 'done:' .. group, #mine)
if #places == 0 then return codes end

local done_fields, done_pairs, job_ids, their_entries = {}, {}, {}, {}
for i, place in ipairs(places) do
  if codes[place] == MINE then
    local n, field = #done_fields + 1, group .. '/' .. remembered[i]
    done_fields[n] = field
    done_pairs[2 * n - 1], done_pairs[2 * n] = field, 'done ' .. results[i]
    if kinds[i] == 'chosen' then
      job_ids[#job_ids + 1] = remembered[i]
      their_entries[#job_ids] = entry_ids[place]
    end
  end
end
local now = server_ms()
if #done_fields > 0 then put_records(done, now, slice_ms, done_fields, done_pairs) end
if #job_ids > 0 then put_done_ids(stream, others, group, ids, now, slice_ms, job_ids, their_entries) end
return codes
