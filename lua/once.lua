-- once.lua: apply effects the first time it is called with an ID, and never again while the ID is remembered.
--
-- KEYS[1..4]  done   T:done:<slice>   hashes, once:<group>/<ID> -> done
-- KEYS[5]     probe  T:probe          written and unlinked to learn what the user may do, on servers before 7.0
-- KEYS[6..]   data   T:data:<key>     keys of the effects
-- ARGV[1]  group
-- ARGV[2]  ID
-- ARGV[3]  slice length in ms
-- ARGV[4..]  effects: how many; then for each its command, the number of its key among data, the number of its
--            arguments, the arguments
--
-- Returns  { 1 }  the effects were applied
--          { 0 }  the ID was known; nothing was written
--          { -2, effect, reason }  that effect (1 is the first) cannot be applied; nothing was written, the ID stays free
--          error                   refused for now (memory is full, ...), or a slice of T:done is no hash; nothing was written
--
-- Atomic because the ID must be marked exactly when the effects are applied: marked first, a failing effect would be lost
-- for ever. Its records have a prefix of their own: a job that calls once with its own ID is not done by that. Redis >= 6.2.
-- Uses: records, effects

local done = { KEYS[1], KEYS[2], KEYS[3], KEYS[4] }
local probe = KEYS[5]
local data = {}
for i = 6, #KEYS do data[i - 5] = KEYS[i] end
local group = ARGV[1]
local id = ARGV[2]
local slice_ms = tonumber(ARGV[3])

local wrong = check_slices(done)
if wrong then return wrong end
local now = server_ms()
local field = 'once:' .. group .. '/' .. id
if find_record(done, now, field) then return { 0 } end

local bad, why = apply_effects(read_effects(ARGV, 4, data), probe)
if bad then
  if type(why) == 'table' then return why end
  return { -2, bad, why }
end
put_records(done, now, slice_ms, { field }, { field, 'done ' })
return { 1 }
