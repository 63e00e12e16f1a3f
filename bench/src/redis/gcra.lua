-- One check by the generic cell rate algorithm, all in one atomic script.
-- KEYS[1]  the key: it holds the instant at which all that was spent has come back
-- ARGV[1]  microseconds in which one unit comes back
-- ARGV[2]  microseconds of burst: how far that instant may lie ahead
-- ARGV[3]  cost
-- Returns 0 if allowed (and spent), or the microseconds to wait (and nothing is written).

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local back_at = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now) + ARGV[1] * ARGV[3]
local wait = back_at - now - ARGV[2]
if wait > 0 then
  return wait
end
-- Whole microseconds since the epoch are exact in a double.
redis.call('SET', KEYS[1], string.format('%.0f', back_at), 'PX', math.ceil((back_at - now) / 1000))
return 0
