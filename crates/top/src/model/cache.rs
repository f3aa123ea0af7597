//! Caches the last table, the troubles, and sums of past samples. A held key or the mouse wheel
//! redraws the screen many times between two samples, and building the table for ten thousand
//! sessions takes noticeable time.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use crate::{
    ScreenTable, ServerSnapshot,
    table::{ScreenKind, TableOptions},
    troubles::{Trouble, troubles},
    waits::{SessionProfile, WaitProfile},
};

/// The troubles of the last snapshot that was looked at.
#[derive(Debug, Default)]
pub(crate) struct TroubleCache(RefCell<Option<CachedTroubles>>);

type CachedTroubles = (Arc<ServerSnapshot>, Rc<[Trouble]>);

impl TroubleCache {
    /// Returns the troubles of a snapshot.
    pub(crate) fn troubles(&self, snapshot: &Arc<ServerSnapshot>) -> Rc<[Trouble]> {
        let mut cached = self.0.borrow_mut();
        let is_of_this = |known: &CachedTroubles| Arc::ptr_eq(&known.0, snapshot);
        let (_, found) = cached
            .take_if(|known| is_of_this(known))
            .unwrap_or_else(|| (Arc::clone(snapshot), troubles(snapshot).into()));
        *cached = Some((Arc::clone(snapshot), Rc::clone(&found)));
        found
    }
}

/// Everything that is computed once per sample.
#[derive(Debug, Default)]
pub(crate) struct ModelCaches {
    pub(super) table: TableCache,
    pub(crate) troubles: TroubleCache,
    /// Waits by dimension, of the server with this index.
    pub(super) waits: PeriodCache<usize, WaitProfile>,
    /// Waits of the session whose page is open, by server, process id and start time.
    pub(crate) session: PeriodCache<(usize, i32, i64), SessionProfile>,
}

/// Sums over the samples of a period. They are extended when the end of the period moves forward.
#[derive(Debug)]
pub(crate) struct PeriodCache<K, T>(RefCell<Option<CachedPeriod<K, T>>>);

#[derive(Debug)]
struct CachedPeriod<K, T> {
    key: K,
    from_us: i64,
    until_us: i64,
    sums: Arc<T>,
}

impl<K, T> Default for PeriodCache<K, T> {
    fn default() -> Self {
        Self(RefCell::new(None))
    }
}

impl<K: PartialEq, T: Clone + Default> PeriodCache<K, T> {
    /// Returns the sums of a period, both ends inclusive, in microseconds since 1970. `add` adds
    /// the samples of a period to sums.
    pub(crate) fn sums(
        &self,
        key: K,
        (from_us, until_us): (i64, i64),
        add: impl FnOnce(&mut T, (i64, i64)),
    ) -> Arc<T> {
        let mut cached = self.0.borrow_mut();
        let is_extended = |known: &CachedPeriod<K, T>| {
            known.key == key && known.from_us == from_us && known.until_us <= until_us
        };
        let (mut sums, next_us) = match cached.take().filter(is_extended) {
            Some(known) => (known.sums, known.until_us.saturating_add(1)),
            None => (Arc::default(), from_us),
        };
        if next_us <= until_us {
            add(Arc::make_mut(&mut sums), (next_us, until_us));
        }
        *cached = Some(CachedPeriod { key, from_us, until_us, sums: Arc::clone(&sums) });
        sums
    }
}

/// The last table that was built, and the data that it was built from.
#[derive(Debug, Default)]
pub(super) struct TableCache(RefCell<Option<CachedTable>>);

#[derive(Debug)]
struct CachedTable {
    screen: ScreenKind,
    /// Kept alive, so that no other snapshot can get the same address.
    snapshot: Arc<ServerSnapshot>,
    options: TableOptions,
    table: Option<Rc<ScreenTable>>,
}

impl TableCache {
    /// Returns the table of a snapshot, as built by [`ScreenTable::new`].
    pub(super) fn table(
        &self,
        screen: ScreenKind,
        snapshot: &Arc<ServerSnapshot>,
        options: TableOptions,
    ) -> Option<Rc<ScreenTable>> {
        let mut cached = self.0.borrow_mut();
        let is_of_this = |cached_table: &CachedTable| {
            cached_table.screen == screen
                && Arc::ptr_eq(&cached_table.snapshot, snapshot)
                && TableOptions {
                    order: options.order,
                    is_ascending: options.is_ascending,
                    ..cached_table.options.clone()
                } == options
        };
        let table = match cached.take().filter(is_of_this) {
            Some(cached_table) if cached_table.options == options => cached_table.table,
            cached_table => {
                let order = options.order.or(screen.order());
                match cached_table.and_then(|cached_table| cached_table.table).zip(order) {
                    // Only the order differs, so sort the cached rows.
                    Some((mut table, order)) => {
                        Rc::make_mut(&mut table).sort(order, options.is_ascending);
                        Some(table)
                    }
                    None => ScreenTable::new(screen, snapshot, &options).map(Rc::new),
                }
            }
        };
        let snapshot = Arc::clone(snapshot);
        *cached = Some(CachedTable { screen, snapshot, options, table: table.clone() });
        table
    }
}

#[test]
fn sums_are_extended_unless_the_period_starts_elsewhere() {
    let cache = PeriodCache::<u8, Vec<(i64, i64)>>::default();
    let sums = |key, period| {
        let sums = cache.sums(key, period, |sums: &mut Vec<_>, added| sums.push(added));
        (*sums).clone()
    };
    assert_eq!(sums(0, (10, 20)), [(10, 20)]);
    assert_eq!(sums(0, (10, 20)), [(10, 20)]);
    assert_eq!(sums(0, (10, 25)), [(10, 20), (21, 25)]);
    // Backwards in time, from another start, and of another server.
    assert_eq!(sums(0, (10, 24)), [(10, 24)]);
    assert_eq!(sums(0, (12, 30)), [(12, 30)]);
    assert_eq!(sums(1, (12, 40)), [(12, 40)]);
}
