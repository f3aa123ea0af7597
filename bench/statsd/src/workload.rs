//! The packets to send: five calls for each of a hundred hosts, as in the Perl client's benchmark.
//!
//! A timing, an increment by 1, a decrement by 1, an increment by a number, a gauge; 500 names.

/// Hosts, each with all five metrics.
const HOSTS: usize = 100;

/// Rounds over all hosts before values repeat.
const ROUNDS: usize = 8;

/// Payload of a packet that fits an Ethernet frame.
pub(crate) const MTU_BYTES: usize = 1432;

/// Distinct packets of one metric each, to be sent in a loop.
pub(crate) fn singles() -> Vec<Vec<u8>> {
    let mut random = XorShift(7);
    let mut packets = Vec::with_capacity(ROUNDS * HOSTS * 5);
    for _ in 0..ROUNDS {
        for host in 0..HOSTS {
            let (ms, bytes, load) = (random.below(1000), random.below(65536), random.below(800));
            packets.extend([
                format!("bench.web{host:02}.response_time:{ms}|ms"),
                format!("bench.web{host:02}.requests:1|c"),
                format!("bench.web{host:02}.sessions:-1|c"),
                format!("bench.web{host:02}.bytes:{bytes}|c"),
                format!("bench.web{host:02}.load:{}.{:02}|g", load / 100, load % 100),
            ]);
        }
    }
    packets.into_iter().map(String::into_bytes).collect()
}

/// Lines joined into packets of up to [`MTU_BYTES`].
pub(crate) fn packed(lines: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut packets: Vec<Vec<u8>> = vec![Vec::new()];
    for line in lines {
        let last = packets.last_mut().expect("packets is never empty");
        if last.is_empty() {
            last.extend_from_slice(line);
        } else if last.len() + 1 + line.len() <= MTU_BYTES {
            last.push(b'\n');
            last.extend_from_slice(line);
        } else {
            packets.push(line.clone());
        }
    }
    packets
}

/// `keys` counters, one line each.
pub(crate) fn counters(keys: usize) -> Vec<Vec<u8>> {
    (0..keys).map(|key| format!("bench.many.service{}.key{key:07}:1|c", key % 97).into()).collect()
}

/// One line for each of `keys` names of 23 bytes, of this type.
pub(crate) fn named(keys: usize, kind: &str) -> Vec<Vec<u8>> {
    (0..keys).map(|key| format!("bench.memory.key{key:07}:1|{kind}").into()).collect()
}

/// Number of counters in a round of [`tagged`] lines, each sent once.
pub(crate) const TAGGED_KEYS: usize = 10_000;

/// Counters with four tags each, one line each.
pub(crate) fn tagged() -> Vec<Vec<u8>> {
    let line = |key: usize| {
        let (host, pod, version) = (key % HOSTS, key / HOSTS, key % 7);
        format!(
            "bench.web{host:02}.requests:1|c|#env:prod,region:eu-1,pod:{pod:03},version:1.{version}"
        )
    };
    (0..TAGGED_KEYS).map(|key| line(key).into()).collect()
}

/// `samples` timings, distributed over `keys` timers.
pub(crate) fn timings(samples: usize, keys: usize) -> Vec<Vec<u8>> {
    let mut random = XorShift(11);
    (0..samples)
        .map(|sample| {
            format!("bench.flush.timer{:05}:{}|ms", sample % keys, random.below(5000)).into()
        })
        .collect()
}

/// A pseudo-random generator (xorshift) with the same sequence in every run.
struct XorShift(u64);

impl XorShift {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
