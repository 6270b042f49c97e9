-- sweep.lua: forget the job IDs that are due, also where no job has one at the moment. A part of workers' maintenance.
--
-- KEYS[1..4]  ids   T:ids:<slice>    hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[5..8]  done  T:done:<slice>   hashes, <group>/<job ID> -> running <entry ID> | done <result>
--
-- Returns  1                looked
--          error WRONGTYPE  a slice is no hash; those of the other kind were looked at
--
-- Atomic because a slice must still be due when it is unlinked: another process may just have begun its next turn.
-- Redis >= 6.2.
-- Uses: records

local ids = { KEYS[1], KEYS[2], KEYS[3], KEYS[4] }
local done = { KEYS[5], KEYS[6], KEYS[7], KEYS[8] }

local wrong_ids, wrong_done = check_slices(ids), check_slices(done)
return wrong_ids or wrong_done or 1
