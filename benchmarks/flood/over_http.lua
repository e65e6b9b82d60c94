-- What wrk sends: one body again and again, each connection after a random pause. What it prints: one line of JSON.
local pause_ms = tonumber(os.getenv("FLOOD_PAUSE_MS"))
local in_time_us = tonumber(os.getenv("FLOOD_IN_TIME_MS")) * 1000

function init(args)
   math.randomseed(1)
   wrk.method = "POST"
   wrk.body = args[1]
   wrk.headers["Content-Type"] = "application/json"
end

function delay()
   return math.floor(-pause_ms * math.log(1 - math.random()))
end

function done(summary, latency)
   local errors = summary.errors
   local quick = 0
   for at = 1, #latency do
      local value, count = latency(at)
      if value <= in_time_us then
         quick = quick + count
      end
   end
   io.write(string.format(
      '{"requests": %d, "seconds": %.6f, "p50_s": %.6f, "p99_s": %.6f, "quick": %d, "refused": %d, "broken": %d}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
      quick, errors.status, errors.connect + errors.read + errors.write + errors.timeout
   ))
end
