//! [`Ring`]: which node a key belongs to.
//!
//! Each node has some forty points on a circle of 32-bit numbers, md5 of `host:port-0`,
//! `host:port-1`, …; a key belongs to the first point at or after its own md5. When a node goes, only
//! its keys move. The points are exactly those of etsy's proxy (npm's hashring 3.2 with `replicas: 0`),
//! down to its rounding, so that servers behind either see the same keys.

use std::collections::BTreeSet;

use md5::{Digest as _, Md5};

/// A ring of nodes, known by their place in a list.
#[derive(Debug, Default)]
pub struct Ring {
    /// Ascending; of equal points the one of the earlier node is first.
    points: Vec<(u32, usize)>,
}

impl Ring {
    /// The ring of these nodes: a number that stands for each, and its name, `host:port`.
    pub fn new<'n>(nodes: impl IntoIterator<Item = (usize, &'n str)>) -> Self {
        let nodes: Vec<_> = nodes.into_iter().collect();
        let mut points = Vec::new();
        for (node, name) in &nodes {
            for point in 0..points_of_a_node(nodes.len()) {
                points.push((place(format!("{name}-{point}").as_bytes()), *node));
            }
        }
        points.sort_by_key(|(place, _)| *place);
        Self { points }
    }

    /// The node of a key; `None` if there are no nodes.
    #[must_use]
    pub fn node(&self, key: &[u8]) -> Option<usize> {
        let key = place(key);
        let at = self.points.partition_point(|(point, _)| *point < key);
        let (_, node) = self.points.get(at).or_else(|| self.points.first())?;
        Some(*node)
    }

    /// The nodes on it, by their number.
    pub fn nodes(&self) -> impl Iterator<Item = usize> {
        self.points.iter().map(|(_, node)| *node).collect::<BTreeSet<_>>().into_iter()
    }
}

/// Forty, but for what floating point makes of `100 / total * 40 * nodes`: 39 for seven.
fn points_of_a_node(nodes: usize) -> u32 {
    let share = 100.0 / (100.0 * nodes as f64);
    (share * 40.0 * nodes as f64).floor() as u32
}

fn place(text: &[u8]) -> u32 {
    let digest = Md5::digest(text);
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: [&str; 3] = ["127.0.0.1:8127", "127.0.0.1:8129", "127.0.0.1:8131"];

    fn ring(without: &[usize]) -> Ring {
        let nodes = NODES.into_iter().enumerate();
        Ring::new(nodes.filter(|(at, _)| !without.contains(at)))
    }

    /// The md5 of the last digits of the ports that `key.0` to `key.9999` go to.
    fn fingerprint(ring: &Ring) -> String {
        let ports: String = (0..10_000)
            .filter_map(|n| NODES[ring.node(format!("key.{n}").as_bytes())?].chars().last())
            .collect();
        let digest = Md5::digest(ports.as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn keys_are_placed_as_by_etsys_proxy() {
        // What npm's hashring 3.2.0 says.
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
        assert_eq!(fingerprint(&all), "97918dd41dcfac6384362579a5cd93ff");
        assert_eq!(fingerprint(&ring(&[1])), "f170e642616bab220e944919d845501c");
    }

    #[test]
    fn the_number_of_points_is_that_of_npms_hashring() {
        for (nodes, points) in
            [(1, 40), (2, 80), (3, 120), (5, 200), (6, 240), (7, 273), (9, 360), (10, 400)]
        {
            let names: Vec<_> = (0..nodes).map(|node| format!("h:{node}")).collect();
            let ring = Ring::new(names.iter().map(String::as_str).enumerate());
            assert_eq!(ring.points.len(), points);
        }
    }

    #[test]
    fn only_the_keys_of_a_lost_node_move() {
        let (all, two) = (ring(&[]), ring(&[1]));
        for n in 0..10_000 {
            let key = format!("key.{n}");
            let (before, after) = (all.node(key.as_bytes()), two.node(key.as_bytes()));
            assert!(before == after || before == Some(1), "{key}");
            assert_ne!(after, Some(1));
        }
        assert_eq!(Ring::default().node(b"x"), None);
    }
}
