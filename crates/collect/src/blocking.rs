//! Builds lock wait trees: each session is below one that blocks it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{Activity, Blocker};

/// Trees of sessions that wait for locks, below those that block them; the largest tree first.
///
/// A session that waits for several others is listed once, below one of them;
/// [`BlockingNode::other_blockers`] has the rest. Sessions that are below no root wait for a cycle
/// (a deadlock that the server has not detected yet): its member with the lowest process id serves
/// as root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockingTrees {
    /// All nodes in depth-first order: each tree's root, followed by the nodes that wait for it.
    pub nodes: Vec<BlockingNode>,
}

/// A session or prepared transaction in a blocking tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingNode {
    /// The session's process, or a prepared transaction.
    pub process: Blocker,
    /// Index into [`Activity::backends`]; `None` for a prepared transaction or an unlisted process.
    pub backend: Option<usize>,
    /// Number of ancestors in the tree; 0 for a root.
    pub depth: usize,
    /// Number of nodes below this one: sessions that wait for it, directly or indirectly, except
    /// those listed below another of their blockers.
    pub victims: usize,
    /// Blockers of the session other than the parent node.
    pub other_blockers: Vec<Blocker>,
    /// Whether the root of the tree waits, too, because it is in a cycle.
    pub is_in_cycle: bool,
}

impl BlockingTrees {
    /// Builds the trees from the blockers of each session.
    pub fn from_activity(activity: &Activity) -> Self {
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
        let mut builder = TreeBuilder {
            blockers: &blockers,
            victims: &victims,
            indexes: places,
            visited: BTreeSet::new(),
        };
        let is_root = |who: &&Blocker| !blockers.contains_key(who);
        let mut trees: Vec<Vec<BlockingNode>> =
            victims.keys().filter(is_root).map(|root| builder.tree(*root, false)).collect();
        // Sessions not visited so far wait in cycles.
        for who in blockers.keys() {
            if !builder.visited.contains(who) {
                let root = builder.cycle_root_above(*who);
                trees.push(builder.tree(root, true));
            }
        }
        trees.sort_by_key(|tree| std::cmp::Reverse(tree.len()));
        Self { nodes: trees.into_iter().flatten().collect() }
    }

    /// Whether no session is blocked by another, or by a prepared transaction.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

struct TreeBuilder<'a> {
    blockers: &'a BTreeMap<Blocker, &'a [Blocker]>,
    victims: &'a BTreeMap<Blocker, Vec<Blocker>>,
    indexes: HashMap<i32, usize>,
    visited: BTreeSet<Blocker>,
}

impl TreeBuilder<'_> {
    /// Returns the member with the lowest process id of the cycle that is found by following
    /// blockers upwards. There must be a cycle, because the session is not below any root.
    fn cycle_root_above(&self, who: Blocker) -> Blocker {
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

    /// Builds the tree below `root` without recursion: a lock queue may be thousands long.
    fn tree(&mut self, root: Blocker, is_in_cycle: bool) -> Vec<BlockingNode> {
        let mut nodes = Vec::new();
        let mut stack = vec![(root, None, 0)];
        while let Some((who, above, depth)) = stack.pop() {
            if !self.visited.insert(who) {
                continue;
            }
            let mine = self.blockers.get(&who).copied().unwrap_or_default();
            let also = mine.iter().filter(|blocker| Some(**blocker) != above).copied().collect();
            let backend = match who {
                Blocker::Process(pid) => self.indexes.get(&pid).copied(),
                Blocker::Prepared => None,
            };
            nodes.push(BlockingNode {
                process: who,
                backend,
                depth,
                victims: 0,
                other_blockers: also,
                is_in_cycle,
            });
            let below = self.victims.get(&who).map_or(&[][..], Vec::as_slice);
            // The stack pops the last pushed first, so push in reverse to keep the order of process
            // ids.
            stack.extend(below.iter().rev().map(|victim| (*victim, Some(who), depth + 1)));
        }
        count_victims(&mut nodes);
        nodes
    }
}

/// Counts descendants: in depth-first order they follow their ancestor and are deeper.
fn count_victims(nodes: &mut [BlockingNode]) {
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
    use crate::BackendActivity;

    fn activity(waits: &[(i32, &[i32])]) -> Activity {
        let blocker = |&pid: &i32| if pid == 0 { Blocker::Prepared } else { Blocker::Process(pid) };
        let backends = waits.iter().map(|(pid, blockers)| BackendActivity {
            pid: *pid,
            blockers: blockers.iter().map(blocker).collect(),
            ..BackendActivity::default()
        });
        Activity { taken_us: 0, backends: backends.collect() }
    }

    fn render(trees: &BlockingTrees) -> Vec<String> {
        let line = |node: &BlockingNode| {
            let name = match node.process {
                Blocker::Process(pid) => pid.to_string(),
                Blocker::Prepared => "prepared".to_owned(),
            };
            format!("{}{name} {}", "  ".repeat(node.depth), node.victims)
        };
        trees.nodes.iter().map(line).collect()
    }

    #[test]
    fn roots_come_first_with_their_victims_counted() {
        let trees = BlockingTrees::from_activity(&activity(&[
            (1, &[]),
            (2, &[1]),
            (3, &[2]),
            (4, &[1, 2]),
            (5, &[]),
            (6, &[5]),
            (7, &[]),
        ]));
        assert_eq!(render(&trees), ["1 3", "  2 2", "    3 0", "    4 0", "5 1", "  6 0"]);
        assert_eq!(trees.nodes[3].other_blockers, [Blocker::Process(1)]);
    }

    #[test]
    fn prepared_transactions_and_unlisted_processes_can_be_roots() {
        let trees = BlockingTrees::from_activity(&activity(&[(2, &[0]), (3, &[99])]));
        assert_eq!(render(&trees), ["99 1", "  3 0", "prepared 1", "  2 0"]);
        assert_eq!(trees.nodes[0].backend, None);
    }

    #[test]
    fn cycle_is_listed_once_and_flagged() {
        let trees =
            BlockingTrees::from_activity(&activity(&[(1, &[2]), (2, &[3]), (3, &[1]), (4, &[1])]));
        assert_eq!(render(&trees), ["1 3", "  3 1", "    2 0", "  4 0"]);
        assert!(trees.nodes.iter().all(|node| node.is_in_cycle));
        let trees = BlockingTrees::from_activity(&activity(&[(1, &[2]), (2, &[3]), (3, &[2])]));
        assert_eq!(render(&trees), ["2 2", "  1 0", "  3 0"]);
    }

    #[test]
    fn long_lock_queue_does_not_recurse() {
        let waits: Vec<(i32, [i32; 1])> = (2..50_000).map(|pid| (pid, [pid - 1])).collect();
        let waits: Vec<(i32, &[i32])> = waits.iter().map(|(pid, who)| (*pid, &who[..])).collect();
        let trees = BlockingTrees::from_activity(&activity(&waits[..5_000]));
        assert_eq!(trees.nodes[0].victims, 5_000);
    }
}
