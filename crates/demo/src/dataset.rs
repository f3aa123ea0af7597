//! The demo's database: a small web shop with enough rows that an index matters.

/// Initial number of rows of `customers`, `products` and `orders`.
pub(crate) const CUSTOMERS: u32 = 5_000;
pub(crate) const PRODUCTS: u32 = 500;
pub(crate) const ORDERS: u32 = 60_000;

/// The index on `orders` that the change drops.
pub(crate) const PLANTED_INDEX: &str = "orders_customer_id_created_at_idx";

/// The statement that needs [`PLANTED_INDEX`]: the latest orders of a customer.
pub(crate) const PLANTED_QUERY: &str = "select id, created_at, status, total from orders \
     where customer_id = $1 order by created_at desc limit 10";

/// Returns the statements that create and fill the tables, in parts between which the demo can be
/// interrupted. Rows are computed rather than random, so every demo has the same data.
pub(crate) fn schema() -> [String; 6] {
    [
        "create table customers (
             id int primary key,
             name text not null,
             city text not null
         );
         create table products (
             id int primary key,
             name text not null,
             price numeric(8, 2) not null,
             stock int not null
         ) with (fillfactor = 50);
         create table orders (
             id bigserial primary key,
             customer_id int not null,
             product_id int not null,
             created_at timestamptz not null default now(),
             status text not null default 'new',
             total numeric(10, 2) not null,
             note text
         ) with (fillfactor = 80)"
            .to_owned(),
        format!(
            "insert into customers
                 select i, 'customer ' || i, 'city ' || i % 97
                 from generate_series(1, {CUSTOMERS}) i;
             insert into products
                 select i, 'product ' || i, 1 + i % 250, 1000000
                 from generate_series(1, {PRODUCTS}) i"
        ),
        format!(
            "insert into orders (customer_id, product_id, created_at, status, total, note)
                 select 1 + i * 7919 % {CUSTOMERS}, 1 + i * 31 % {PRODUCTS},
                        timestamptz '2026-01-01 00:00+00' + i * interval '7 seconds',
                        case i % 5 when 0 then 'new' when 1 then 'paid' else 'sent' end,
                        (1 + i % 400)::numeric, repeat('note ', 20 + i % 30)
                 from generate_series(1, {ORDERS}) i"
        ),
        format!("create index {PLANTED_INDEX} on orders (customer_id, created_at)"),
        "alter table orders add foreign key (customer_id) references customers,
             add foreign key (product_id) references products"
            .to_owned(),
        "vacuum (analyze) customers, products, orders".to_owned(),
    ]
}

/// Statements that read every table once, to warm the cache.
pub(crate) const WARM_UP: &str = "select count(*), sum(length(name)) from customers; \
     select count(*), sum(length(name)) from products; \
     select count(*), sum(length(note)) from orders";

/// Returns the statement that makes the change: it drops [`PLANTED_INDEX`].
pub(crate) fn change() -> String {
    format!("drop index {PLANTED_INDEX}")
}
