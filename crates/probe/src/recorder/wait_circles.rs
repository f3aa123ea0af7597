//! Finds sessions that wait for each other in a circle.
//!
//! `pg_blocking_pids()` reads the locks for one session after the other, so the waits in one list
//! of sessions belong to different moments, and may form a circle that never existed. A circle is
//! real if a second list has it with the same waits of the same transactions.

use std::collections::{HashMap, HashSet};

use howdah_collect::{Activity, BackendActivity, Blocker};

use super::{session_records::MemberWait, wait_graph::circles};

/// Returns the sessions that wait in circles, with the members that they wait for as their only
/// blockers.
pub(super) fn members_of_circles(activity: &Activity) -> Vec<BackendActivity> {
    let pid_of = |pid: i32| u32::try_from(pid).unwrap_or(0);
    let mut waits: HashMap<u32, Vec<u32>> = HashMap::new();
    for backend in activity.backends.iter().filter(|backend| !backend.blockers.is_empty()) {
        let blockers = backend.blockers.iter().filter_map(|blocker| match blocker {
            Blocker::Process(pid) => Some(pid_of(*pid)),
            Blocker::Prepared => None,
        });
        waits.entry(pid_of(backend.pid)).or_default().extend(blockers);
        // PostgreSQL reports the leader as the blocker for the locks of its workers, and does not
        // report that the leader waits for them.
        if let Some(leader) = backend.leader.filter(|leader| *leader != backend.pid) {
            waits.entry(pid_of(leader)).or_default().push(pid_of(backend.pid));
        }
    }
    let of_backend = |backend: &BackendActivity| waits.get(&pid_of(backend.pid));
    let waiting: Vec<_> =
        activity.backends.iter().filter(|backend| of_backend(backend).is_some()).collect();
    let edges: Vec<(u32, &[u32])> = waiting
        .iter()
        .map(|backend| (pid_of(backend.pid), of_backend(backend).map_or(&[][..], Vec::as_slice)))
        .collect();
    let mut members = Vec::new();
    for circle in circles(&edges) {
        let pids: HashSet<u32> = circle.iter().map(|at| edges[*at].0).collect();
        for at in circle {
            let mut blockers: Vec<_> =
                edges[at].1.iter().filter(|pid| pids.contains(pid)).collect();
            blockers.sort_unstable();
            blockers.dedup();
            let blockers = blockers.into_iter().filter_map(|pid| i32::try_from(*pid).ok());
            members.push(BackendActivity {
                blockers: blockers.map(Blocker::Process).collect(),
                ..waiting[at].clone()
            });
        }
    }
    members
}

/// Returns what identifies a session's wait.
pub(super) fn member_wait(backend: &BackendActivity) -> MemberWait {
    MemberWait {
        pid: u32::try_from(backend.pid).unwrap_or(0),
        transaction_us: backend.transaction_started_us,
        // Before PostgreSQL 14 only the start of the statement is known.
        blocked_us: backend.blocked_since_us.or(backend.since_us()),
    }
}

/// Returns the members of circles that `suspects`, which an earlier list had in circles, form with
/// the same waits in a later list.
pub(super) fn confirmed_members(
    suspects: &[BackendActivity],
    mut later: Activity,
) -> Vec<BackendActivity> {
    let suspects: HashSet<MemberWait> = suspects.iter().map(member_wait).collect();
    later.backends.retain(|backend| suspects.contains(&member_wait(backend)));
    members_of_circles(&later)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of sessions: process ids, those they wait for, and when they began to wait.
    fn activity(waits: &[(i32, &[i32], i64)]) -> Activity {
        let backend = |(pid, blockers, blocked_us): &(i32, &[i32], i64)| BackendActivity {
            pid: *pid,
            transaction_started_us: Some(1),
            blocked_since_us: Some(*blocked_us),
            blockers: blockers.iter().copied().map(Blocker::Process).collect(),
            ..BackendActivity::default()
        };
        Activity { taken_us: 100, backends: waits.iter().map(backend).collect() }
    }

    fn pids(members: &[BackendActivity]) -> Vec<i32> {
        members.iter().map(|member| member.pid).collect()
    }

    #[test]
    fn circle_is_confirmed_only_with_the_same_waits() {
        let first = activity(&[(1, &[2, 9], 10), (2, &[1], 20), (3, &[1], 30), (9, &[], 0)]);
        let suspects = members_of_circles(&first);
        assert_eq!(pids(&suspects), [1, 2]);
        assert_eq!(suspects[0].blockers, [Blocker::Process(2)]);
        assert_eq!(pids(&confirmed_members(&suspects, first)), [1, 2]);
        for later in [
            activity(&[(1, &[2], 10), (2, &[], 20)]),
            // Session 2 waits again.
            activity(&[(1, &[2], 10), (2, &[1], 21)]),
            activity(&[(1, &[2], 10)]),
        ] {
            assert!(confirmed_members(&suspects, later).is_empty());
        }
        let mut later = activity(&[(1, &[2], 10), (2, &[1], 20)]);
        later.backends[0].transaction_started_us = Some(2);
        assert!(confirmed_members(&suspects, later).is_empty());
        // A circle that another member has joined is confirmed with it the next time.
        let later = activity(&[(1, &[2, 3], 10), (2, &[1], 20), (3, &[1], 30)]);
        assert_eq!(pids(&confirmed_members(&suspects, later)), [1, 2]);
    }

    #[test]
    fn leader_waits_for_its_workers() {
        let mut activity = activity(&[(1, &[], 0), (2, &[3], 10), (3, &[1], 20)]);
        activity.backends[1].leader = Some(1);
        activity.backends[0].blocked_since_us = None;
        let members = members_of_circles(&activity);
        assert_eq!(pids(&members), [1, 2, 3]);
        assert_eq!(members[0].blockers, [Blocker::Process(2)]);
    }

    #[test]
    fn many_waits_are_searched_in_linear_time() {
        // Each waits for all before it, as in the queue of a lock; the last two for each other.
        let count = 1500;
        let waits: Vec<Vec<i32>> = (0..count).map(|pid| (1..=pid).collect()).collect();
        let mut waits: Vec<(i32, &[i32], i64)> =
            (1..).zip(&waits).map(|(pid, blockers)| (pid, &blockers[..], 0)).collect();
        assert!(members_of_circles(&activity(&waits)).is_empty());
        let last = [count];
        waits[1498].1 = &last;
        assert_eq!(pids(&members_of_circles(&activity(&waits))), [count - 1, count]);
    }
}
