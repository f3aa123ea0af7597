//! Circles in a graph of waits.

use std::collections::HashMap;

/// Returns the circles of waits: sets of two or more processes in which each waits, directly or
/// through others, for each. A wait is a process id with those that it waits for; a circle is a
/// list of indexes of waits, in the order of a search from one process to those it waits for.
///
/// Takes time proportional to the number of waits and blockers (Kosaraju's algorithm).
pub(super) fn circles(waits: &[(u32, &[u32])]) -> Vec<Vec<usize>> {
    let index_of: HashMap<u32, usize> =
        waits.iter().enumerate().map(|(at, (pid, _))| (*pid, at)).collect();
    let mut forward = vec![Vec::new(); waits.len()];
    let mut backward = vec![Vec::new(); waits.len()];
    for (at, (_, blockers)) in waits.iter().enumerate() {
        for blocker in blockers.iter().filter_map(|pid| index_of.get(pid)) {
            forward[at].push(*blocker);
            backward[*blocker].push(at);
        }
    }
    // In the reverse of this order, a search against the waits finds one component at a time.
    let mut finished = Vec::with_capacity(waits.len());
    let mut is_visited = vec![false; waits.len()];
    for start in 0..waits.len() {
        let mut path = if is_visited[start] { vec![] } else { vec![(start, 0)] };
        is_visited[start] = true;
        while let Some((node, next)) = path.last_mut() {
            let blocker = forward[*node].get(*next).copied();
            *next += 1;
            match blocker {
                Some(blocker) if is_visited[blocker] => {}
                Some(blocker) => {
                    is_visited[blocker] = true;
                    path.push((blocker, 0));
                }
                None => finished.extend(path.pop().map(|(node, _)| node)),
            }
        }
    }
    let mut component = vec![usize::MAX; waits.len()];
    let mut sizes = vec![0_usize; waits.len()];
    for start in finished.into_iter().rev() {
        let mut next = vec![start];
        while let Some(node) = next.pop() {
            if component[node] == usize::MAX {
                component[node] = start;
                sizes[start] += 1;
                next.extend(&backward[node]);
            }
        }
    }
    let mut is_listed = vec![false; waits.len()];
    let mut circles = Vec::new();
    for start in (0..waits.len()).filter(|node| sizes[component[*node]] > 1) {
        let mut circle = Vec::new();
        let mut next = vec![start];
        while let Some(node) = next.pop() {
            if component[node] == component[start] && !is_listed[node] {
                is_listed[node] = true;
                circle.push(node);
                next.extend(forward[node].iter().rev());
            }
        }
        if !circle.is_empty() {
            circles.push(circle);
        }
    }
    circles
}
