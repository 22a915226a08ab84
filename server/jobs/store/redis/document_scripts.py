"""What changes documents in Redis. Arguments as those of requests' scripts.

`document:KIND:ID` is a hash; `owned:KIND:OWNER` and `stated:KIND:STATE` are sorted sets in the order of arrival.
"""

# quota, kind, id, owner, state, size, then the fields of the hash
PUT = """
local quota, kind, id, owner, state, size = tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
local key = P .. 'document:' .. kind .. ':' .. id
if call('EXISTS', key) == 1 then return {'taken'} end
local held = usage()
if held + size > quota then return {'full', held} end
local seq = call('INCR', P .. 'documents')
call('HSET', key, 'owner', owner, 'state', state, 'size', size, 'seq', seq, 'version', 1, unpack(ARGV, 11))
call('ZADD', P .. 'owned:' .. kind .. ':' .. owner, seq, id)
call('ZADD', P .. 'stated:' .. kind .. ':' .. state, seq, id)
use(size, 0, 0)
return {'kept'}
"""

# quota, kind, id, owner, state, size, version, content, held bytes
REPLACE = """
local quota, kind, id, owner, state, size = tonumber(ARGV[5]), ARGV[6], ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
local key = P .. 'document:' .. kind .. ':' .. id
local r = call('HMGET', key, 'owner', 'version', 'state', 'size', 'held_bytes', 'seq')
if r[1] ~= owner or r[2] ~= ARGV[11] then return {'changed'} end
local held = usage()
if tonumber(ARGV[13]) > tonumber(r[5]) and held + size - r[4] > quota then return {'full', held, size - r[4]} end
call('HSET', key, 'state', state, 'size', size, 'content', ARGV[12], 'held_bytes', ARGV[13])
call('HINCRBY', key, 'version', 1)
call('ZREM', P .. 'stated:' .. kind .. ':' .. r[3], id)
call('ZADD', P .. 'stated:' .. kind .. ':' .. state, r[6], id)
use(size - r[4], 0, 0)
return {'kept'}
"""

# kind, id, owner
DELETE = """
local kind, id, owner = ARGV[5], ARGV[6], ARGV[7]
local key = P .. 'document:' .. kind .. ':' .. id
local r = call('HMGET', key, 'owner', 'state', 'size')
if r[1] ~= owner then return 0 end
call('DEL', key)
call('ZREM', P .. 'owned:' .. kind .. ':' .. owner, id)
call('ZREM', P .. 'stated:' .. kind .. ':' .. r[2], id)
use(-r[3], 0, 0)
return 1
"""
