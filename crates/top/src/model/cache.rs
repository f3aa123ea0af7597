//! Caches the last table and the troubles. A held key or the mouse wheel redraws the screen many
//! times between two samples, and building the table for ten thousand sessions takes noticeable
//! time.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use crate::{
    ScreenTable, ServerSnapshot,
    table::{ScreenKind, TableOptions},
    troubles::{Trouble, troubles},
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
