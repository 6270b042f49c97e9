-- orphans.lua: what lies in T:scheduled:jobs and is no job. Eviction, a restored backup or somebody's own commands leave it.

-- A dead letter with what there is of it. False if it cannot be written.
local function bury_timer(dead, meta, group, id, why, fields, now)
  local own_group, job_id = split_timer(id)
  if own_group and own_group ~= '' then group = own_group end
  local letter = { 'dead:reason', 'invalid', 'dead:error', 'scheduled as ' .. id .. ', but ' .. why, 'dead:source', '0-0',
    'dead:job_id', job_id or id, 'dead:group', group, 'dead:consumer', '', 'dead:deliveries', 0, 'dead:attempts', 0,
    'dead:at', string.format('%.0f', now), 'dead:redrives', 0 }
  for i = 1, #fields, 2 do
    letter[#letter + 1] = string.sub(fields[i], 1, 5) == 'dead:' and 'dead:' .. fields[i] or fields[i]
    letter[#letter + 1] = fields[i + 1]
  end
  if type(redis.pcall('XADD', dead, '*', unpack(letter))) == 'table' then return false end
  redis.pcall('HINCRBY', meta, 'dead:' .. group, 1)
  return true
end

-- Looks through up to 1,000 entries, or one MB of them, if there are more of them than times, for those without; goes on
-- there the next time. How many were taken out.
local function take_untimed(scheduled, jobs, dead, meta, group, dropped, now)
  if redis.call('HLEN', jobs) <= redis.call('ZCARD', scheduled) then return 0 end
  local cursor, looked, bytes, taken = redis.pcall('HGET', meta, 'cursor:orphans'), 0, 0, 0
  if type(cursor) ~= 'string' or not string.find(cursor, '^%d+$') then cursor = '0' end
  repeat
    local page = redis.call('HSCAN', jobs, cursor, 'COUNT', 10) -- with their bodies, which may be large
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local id, packed = page[2][i], page[2][i + 1]
      looked, bytes = looked + 1, bytes + #packed
      if not redis.call('ZSCORE', scheduled, id) then
        local what = 'stuck'
        if bury_timer(dead, meta, group, id, 'without a time', unpack_entry(packed) or { 'packed', packed }, now) then
          redis.call('HDEL', jobs, id)
          what, taken = 'untimed', taken + 1
        end
        dropped[#dropped + 1] = id
        dropped[#dropped + 1] = what
      end
    end
  until cursor == '0' or looked >= 1000 or bytes > 1048576
  redis.pcall('HSET', meta, 'cursor:orphans', cursor)
  return taken
end
