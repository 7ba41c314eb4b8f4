//! Who exchanges with whom when parts go from rank to rank in pairs, and the order in which they are added up.

/// The ranks to send to and to receive from, one pair at a time: with every rank at the same place of this list,
/// each sends to one rank and receives from one.
pub(super) fn partners(rank: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
    (1..count).map(move |apart| ((rank + apart) % count, (rank + count - apart) % count))
}

/// Adds up the numbers of all ranks in their order, into those of the rank `rank`; `others` has those of the other
/// ranks one after another.
pub(super) fn add_in_order(own: &mut [f32], others: &mut [f32], rank: usize) {
    fn add(sum: &mut [f32], values: &[f32]) {
        for (sum, value) in sum.iter_mut().zip(values) {
            *sum += value;
        }
    }
    let length = own.len();
    if length == 0 {
        return;
    }
    let (before, after) = others.split_at_mut(length * rank);
    if rank > 0 {
        let (sum, rest) = before.split_at_mut(length);
        rest.chunks_exact(length).for_each(|values| add(sum, values));
        // Two numbers have the same sum in either order.
        add(own, sum);
    }
    after.chunks_exact(length).for_each(|values| add(own, values));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_in_the_order_of_the_ranks() {
        // Added in another order, these sums are 0 or 2.
        let of_ranks = [[1e8_f32, 1.0], [1.0, 1e8], [-1e8, 1.0], [1.0, -1e8]];
        for (rank, mut own) in of_ranks.into_iter().enumerate() {
            let others = of_ranks.iter().enumerate().filter(|(other, _)| *other != rank);
            let mut others: Vec<f32> = others.flat_map(|(_, values)| *values).collect();
            add_in_order(&mut own, &mut others, rank);
            assert_eq!(own, [1.0, 0.0], "{rank}");
        }
    }

    #[test]
    fn every_rank_meets_every_other_once_and_all_at_the_same_time() {
        for count in 2..9 {
            let all: Vec<Vec<_>> = (0..count).map(|rank| partners(rank, count).collect()).collect();
            for (rank, turns) in all.iter().enumerate() {
                for (turn, (to, from)) in turns.iter().enumerate() {
                    assert_eq!(all[*to][turn].1, rank);
                    assert_eq!(all[*from][turn].0, rank);
                }
                let mut met: Vec<usize> = turns.iter().map(|(to, _)| *to).collect();
                met.sort_unstable();
                assert_eq!(met, (0..count).filter(|other| *other != rank).collect::<Vec<_>>());
            }
        }
    }
}
