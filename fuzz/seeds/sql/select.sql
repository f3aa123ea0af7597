SELECT o.id, 'it''s', E'\'' FROM "Orders" o WHERE a IN (1, 2,3) AND b > -3.5e2 -- all
 LIMIT $1;