//! Who waits for whom: a forest whose roots hold what all below them wait for.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{Activity, Blocker};

/// The trees of waiting sessions, the largest first.
///
/// A session that waits for several stands below the first that leads to a root, so each is shown once;
/// [`Node::also`] has the others. Sessions that wait in a ring (a deadlock that the server has not found
/// yet) have no root: the one with the lowest process id stands for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockingTrees {
    /// All nodes, each behind what it waits for.
    pub nodes: Vec<Node>,
}

/// A session in the forest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Who it is.
    pub who: Blocker,
    /// Its place in [`Activity::backends`]; `None` for a prepared transaction and for what is not listed.
    pub backend: Option<usize>,
    /// How many stand above it.
    pub depth: usize,
    /// How many wait for it, directly or not.
    pub victims: usize,
    /// Whom it waits for beside the one above it.
    pub also: Vec<Blocker>,
    /// The waits that it stands in, or below, are a ring.
    pub is_in_ring: bool,
}

impl BlockingTrees {
    /// Finds out who waits for whom.
    pub fn of(activity: &Activity) -> Self {
        let mut blockers: BTreeMap<Blocker, &[Blocker]> = BTreeMap::new();
        let mut victims: BTreeMap<Blocker, Vec<Blocker>> = BTreeMap::new();
        for backend in activity.backends.iter().filter(|backend| !backend.blockers.is_empty()) {
            let me = Blocker::Process(backend.pid);
            blockers.insert(me, &backend.blockers);
            for blocker in &backend.blockers {
                victims.entry(*blocker).or_default().push(me);
            }
        }
        let places = activity.backends.iter().enumerate();
        let places: HashMap<i32, usize> = places.map(|(at, backend)| (backend.pid, at)).collect();
        let mut grower =
            Grower { blockers: &blockers, victims: &victims, places, seen: BTreeSet::new() };
        let is_root = |who: &&Blocker| !blockers.contains_key(who);
        let mut trees: Vec<Vec<Node>> =
            victims.keys().filter(is_root).map(|root| grower.tree(*root, false)).collect();
        // What is left waits in rings.
        for who in blockers.keys() {
            if !grower.seen.contains(who) {
                let root = grower.ring_above(*who);
                trees.push(grower.tree(root, true));
            }
        }
        trees.sort_by_key(|tree| std::cmp::Reverse(tree.len()));
        Self { nodes: trees.into_iter().flatten().collect() }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

struct Grower<'a> {
    blockers: &'a BTreeMap<Blocker, &'a [Blocker]>,
    victims: &'a BTreeMap<Blocker, Vec<Blocker>>,
    places: HashMap<i32, usize>,
    seen: BTreeSet<Blocker>,
}

impl Grower<'_> {
    /// The lowest of the ring that is found from `who` upwards. There is one, for no root is above.
    fn ring_above(&self, who: Blocker) -> Blocker {
        let above = |who: &Blocker| self.blockers.get(who)?.first().copied();
        let mut way = vec![who];
        let mut passed = BTreeSet::from([who]);
        while let Some(next) = way.last().and_then(above) {
            if !passed.insert(next) {
                let from = way.iter().position(|step| *step == next).unwrap_or(0);
                return way[from..].iter().min().copied().unwrap_or(who);
            }
            way.push(next);
        }
        who
    }

    /// The tree below `root`, without recursion: a queue of waiters may be thousands long.
    fn tree(&mut self, root: Blocker, is_in_ring: bool) -> Vec<Node> {
        let mut nodes = Vec::new();
        let mut stack = vec![(root, None, 0)];
        while let Some((who, above, depth)) = stack.pop() {
            if !self.seen.insert(who) {
                continue;
            }
            let mine = self.blockers.get(&who).copied().unwrap_or_default();
            let also = mine.iter().filter(|blocker| Some(**blocker) != above).copied().collect();
            let backend = match who {
                Blocker::Process(pid) => self.places.get(&pid).copied(),
                Blocker::Prepared => None,
            };
            nodes.push(Node { who, backend, depth, victims: 0, also, is_in_ring });
            let below = self.victims.get(&who).map_or(&[][..], Vec::as_slice);
            // The last pushed is looked at first: the order of process ids is kept.
            stack.extend(below.iter().rev().map(|victim| (*victim, Some(who), depth + 1)));
        }
        count_victims(&mut nodes);
        nodes
    }
}

/// In a tree written from its root, a node's victims are those behind it that stand deeper.
fn count_victims(nodes: &mut [Node]) {
    let mut open: Vec<usize> = Vec::new();
    for at in 0..nodes.len() {
        let depth = nodes[at].depth;
        open.retain(|&above| nodes[above].depth < depth);
        for &above in &open {
            nodes[above].victims += 1;
        }
        open.push(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;

    fn activity(waits: &[(i32, &[i32])]) -> Activity {
        let blocker = |&pid: &i32| if pid == 0 { Blocker::Prepared } else { Blocker::Process(pid) };
        let backends = waits.iter().map(|(pid, blockers)| Backend {
            pid: *pid,
            blockers: blockers.iter().map(blocker).collect(),
            ..Backend::default()
        });
        Activity { taken_us: 0, backends: backends.collect() }
    }

    fn drawn(forest: &BlockingTrees) -> Vec<String> {
        let line = |node: &Node| {
            let name = match node.who {
                Blocker::Process(pid) => pid.to_string(),
                Blocker::Prepared => "prepared".to_owned(),
            };
            format!("{}{name} {}", "  ".repeat(node.depth), node.victims)
        };
        forest.nodes.iter().map(line).collect()
    }

    #[test]
    fn roots_come_first_with_their_victims_counted() {
        let forest = BlockingTrees::of(&activity(&[
            (1, &[]),
            (2, &[1]),
            (3, &[2]),
            (4, &[1, 2]),
            (5, &[]),
            (6, &[5]),
            (7, &[]),
        ]));
        assert_eq!(drawn(&forest), ["1 3", "  2 2", "    3 0", "    4 0", "5 1", "  6 0"]);
        assert_eq!(forest.nodes[3].also, [Blocker::Process(1)]);
    }

    #[test]
    fn a_prepared_transaction_can_be_a_root_and_an_unlisted_process_too() {
        let forest = BlockingTrees::of(&activity(&[(2, &[0]), (3, &[99])]));
        assert_eq!(drawn(&forest), ["99 1", "  3 0", "prepared 1", "  2 0"]);
        assert_eq!(forest.nodes[0].backend, None);
    }

    #[test]
    fn a_ring_is_shown_once_and_named_so() {
        let forest = BlockingTrees::of(&activity(&[(1, &[2]), (2, &[3]), (3, &[1]), (4, &[1])]));
        assert_eq!(drawn(&forest), ["1 3", "  3 1", "    2 0", "  4 0"]);
        assert!(forest.nodes.iter().all(|node| node.is_in_ring));
        let forest = BlockingTrees::of(&activity(&[(1, &[2]), (2, &[3]), (3, &[2])]));
        assert_eq!(drawn(&forest), ["2 2", "  1 0", "  3 0"]);
    }

    #[test]
    fn a_long_queue_is_no_deep_recursion() {
        let waits: Vec<(i32, [i32; 1])> = (2..50_000).map(|pid| (pid, [pid - 1])).collect();
        let waits: Vec<(i32, &[i32])> = waits.iter().map(|(pid, who)| (*pid, &who[..])).collect();
        let forest = BlockingTrees::of(&activity(&waits[..5_000]));
        assert_eq!(forest.nodes[0].victims, 5_000);
    }
}
