-- Posts bodies over many keys, or one. Arguments: path, number of keys, body with KEY and IP in it; or no body, and
-- lines of headers to get it with.

-- A prime, so that it reaches every key, and in an order that has nothing to do with theirs.
local STRIDE = 7919

local requests = {}
local next_request = 0
local threads = 0

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(args)
  local headers = { ["Content-Type"] = "application/json" }
  local keys = tonumber(args[2])
  for key = 1, keys do
    local octets = string.format("%d.%d", math.floor(key / 256), key % 256)
    local function fill(text)
      return (text:gsub("KEY", string.format("%08d", key)):gsub("IP", octets))
    end
    if args[3] ~= "" then
      requests[key] = wrk.format("POST", args[1], headers, fill(args[3]))
    else
      local named = {}
      for name, value in fill(args[4]):gmatch("([^:\n]+): ([^\n]+)") do named[name] = value end
      requests[key] = wrk.format("GET", args[1], named)
    end
  end
  -- Threads begin apart, so that they do not walk the keys side by side.
  next_request = math.floor(number * keys / 2)
end

function request()
  next_request = (next_request + STRIDE) % #requests
  return requests[next_request + 1]
end

function done(summary, latency, _)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.timeout
  local figures = '"requests":%d,"micros":%d,"p50_micros":%d,"p99_micros":%d'
  -- Of the answers, wrk tells only those of status 400 and more apart.
  io.write(string.format('\nRESULT {' .. figures .. ',"failed":%d,"refused":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    failed, errors.status))
end
