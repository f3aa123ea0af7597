//! [`HashRing`]: consistent hashing of keys to nodes.
//!
//! Each node has about forty points on a circle of 32-bit numbers, the MD5 of `host:port-0`,
//! `host:port-1`, …; a key is placed at the first point at or after its own MD5. If a node is
//! removed, hardly any keys but its own move. As in JavaScript, a key is text: bytes that are not
//! UTF-8 count as U+FFFD. The points, including rounding, are those of etsy's
//! proxy (npm's hashring 3.2 with `replicas: 0`), so that both proxies send a key to the same
//! server.

use std::collections::BTreeSet;

use md5::{Digest as _, Md5};

/// A ring of nodes, identified by index.
#[derive(Debug, Default)]
pub struct HashRing {
    /// The points with the indexes of their nodes, sorted by position; at equal positions, the node
    /// added first comes first.
    points: Vec<(u32, usize)>,
}

impl HashRing {
    /// Creates a ring of nodes, each with its index and its name, `host:port`.
    pub fn new<'n>(nodes: impl IntoIterator<Item = (usize, &'n str)>) -> Self {
        let nodes: Vec<_> = nodes.into_iter().collect();
        let mut points = Vec::new();
        for (node, name) in &nodes {
            for point in 0..points_per_node(nodes.len()) {
                points.push((ring_position(format!("{name}-{point}").as_bytes()), *node));
            }
        }
        points.sort_by_key(|(position, _)| *position);
        Self { points }
    }

    /// Returns the index of the node for a key; `None` if there are no nodes.
    pub fn node(&self, key: &[u8]) -> Option<usize> {
        let key = ring_position(String::from_utf8_lossy(key).as_bytes());
        let at = self.points.partition_point(|(point, _)| *point < key);
        let (_, node) = self.points.get(at).or_else(|| self.points.first())?;
        Some(*node)
    }

    /// Returns the indexes of all nodes on the ring, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = usize> {
        self.points.iter().map(|(_, node)| *node).collect::<BTreeSet<_>>().into_iter()
    }
}

/// Returns the number of points per node: 40, or 39 for some numbers of nodes, such as seven,
/// because the floating-point result is rounded down.
fn points_per_node(nodes: usize) -> u32 {
    let share = 100.0 / (100.0 * nodes as f64);
    (share * 40.0 * nodes as f64).floor() as u32
}

fn ring_position(text: &[u8]) -> u32 {
    let digest = Md5::digest(text);
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [&str; 3] = ["127.0.0.1:8127", "127.0.0.1:8129", "127.0.0.1:8131"];

    fn ring(without: &[usize]) -> HashRing {
        let nodes = NODES.into_iter().enumerate();
        HashRing::new(nodes.filter(|(at, _)| !without.contains(at)))
    }

    /// Returns the MD5 of the last digits of the ports to which `key.0` to `key.9999` are sent.
    fn fingerprint(ring: &HashRing) -> String {
        let ports: String = (0..10_000)
            .filter_map(|n| NODES[ring.node(format!("key.{n}").as_bytes())?].chars().last())
            .collect();
        let digest = Md5::digest(ports.as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn keys_match_etsy_proxy_placement() {
        // Expected values from npm's hashring 3.2.0.
        let all = ring(&[]);
        for (key, node) in [
            ("api.hits", 2),
            ("api.latency", 2),
            ("db.queries", 0),
            ("a", 0),
            ("constructor", 1),
            ("gauge.temperature", 1),
            ("", 2),
            ("café", 0),
            ("login;env=prod", 1),
        ] {
            assert_eq!(all.node(key.as_bytes()), Some(node), "{key}");
        }
        // Node decodes packets to text before it hashes keys.
        for n in 0..100 {
            let latin1 = [format!("key.{n}.caf").as_bytes(), b"\xe9"].concat();
            let replaced = format!("key.{n}.caf\u{fffd}");
            assert_eq!(all.node(&latin1), all.node(replaced.as_bytes()));
        }
        assert_eq!(fingerprint(&all), "97918dd41dcfac6384362579a5cd93ff");
        assert_eq!(fingerprint(&ring(&[1])), "f170e642616bab220e944919d845501c");
    }

    #[test]
    fn point_count_matches_npm_hashring() {
        for (nodes, points) in
            [(1, 40), (2, 80), (3, 120), (5, 200), (6, 240), (7, 273), (9, 360), (10, 400)]
        {
            let names: Vec<_> = (0..nodes).map(|node| format!("h:{node}")).collect();
            let ring = HashRing::new(names.iter().map(String::as_str).enumerate());
            assert_eq!(ring.points.len(), points);
        }
    }

    #[test]
    fn removed_node_moves_only_its_keys() {
        let (all, two) = (ring(&[]), ring(&[1]));
        for n in 0..10_000 {
            let key = format!("key.{n}");
            let (before, after) = (all.node(key.as_bytes()), two.node(key.as_bytes()));
            assert!(before == after || before == Some(1), "{key}");
            assert_ne!(after, Some(1));
        }
        assert_eq!(HashRing::default().node(b"x"), None);
    }
}
