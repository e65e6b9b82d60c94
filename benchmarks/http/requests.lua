-- What wrk sends: the lines of a file in turn, each a body to be posted or, with a slash in front, a path to be
-- got. And what it prints: one line of JSON.
local requests = {}
local at = 0

function init(args)
   local headers = { ["Content-Type"] = "application/json" }
   for line in io.lines(args[1]) do
      if line:sub(1, 1) == "/" then
         requests[#requests + 1] = wrk.format("GET", line)
      else
         requests[#requests + 1] = wrk.format("POST", nil, headers, line)
      end
   end
end

function request()
   at = at % #requests + 1
   return requests[at]
end

function done(summary, latency)
   local errors = summary.errors
   io.write(string.format(
      '{"requests": %d, "seconds": %.6f, "p50_s": %.6f, "p99_s": %.6f, "errors": %d}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
      errors.connect + errors.read + errors.write + errors.timeout + errors.status
   ))
end
