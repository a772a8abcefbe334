-- wrk reporter: one line of JSON. BENCH_COOKIE adds a header.
local cookie = os.getenv("BENCH_COOKIE")
if cookie then wrk.headers["Cookie"] = cookie end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'JSON {"requests":%d,"rate":%.1f,"p50_ms":%.3f,"p99_ms":%.3f,"errors":%d}\n',
    summary.requests,
    summary.requests / (summary.duration / 1e6),
    latency:percentile(50) / 1000,
    latency:percentile(99) / 1000,
    e.connect + e.read + e.write + e.status + e.timeout))
end
