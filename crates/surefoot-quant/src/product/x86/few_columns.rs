//! Kernels for few columns: row by row, each row unpacked in registers or in the first-level cache and read once.

/// Columns whose sums the registers hold at once.
pub(super) const AT_ONCE: usize = 4;

/// Writes what a row gave with each of some columns.
#[inline(always)]
pub(super) fn put<const N: usize>(out: &mut [&mut [f32]], row: usize, numbers: [f32; N]) {
    for (out, number) in out.iter_mut().zip(numbers) {
        out[row] = number;
    }
}

/// Columns of `inputs` numbers, filled up with zeros to sixteens, of each of which those with even places come first.
pub(super) fn unzipped(x: &[f32], inputs: usize) -> Vec<[f32; 16]> {
    let mut columns = Vec::with_capacity(x.len() / inputs * inputs.div_ceil(16));
    for column in x.chunks_exact(inputs) {
        for numbers in column.chunks(16) {
            let mut padded = [0.0; 16];
            padded[..numbers.len()].copy_from_slice(numbers);
            columns.push(std::array::from_fn(|at| padded[2 * (at % 8) + at / 8]));
        }
    }
    columns
}

/// Defines the kernels of a module for some instructions. The module has a function `dot::<WIDE>(sum, q, x)`, which adds the products
/// of four neighbouring bytes to each sum; `WIDE` says that `q` can be above 127.
macro_rules! few_columns {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        pub(in crate::product) fn float(
            format: BlockFormat,
            rows: &[u8],
            row_bytes: usize,
            x: &[f32],
            inputs: usize,
            out: &mut [&mut [f32]],
        ) {
            if out.len() > FEW {
                return many_floats(format, rows, row_bytes, x, inputs, out);
            }
            if format == BlockFormat::BF16 {
                return few_bf16(rows, row_bytes, &unzipped(x, inputs), out);
            }
            for (number, row) in rows.chunks_exact(row_bytes).enumerate() {
                for (x, out) in x.chunks(AT_ONCE * inputs).zip(out.chunks_mut(AT_ONCE)) {
                    match out.len() {
                        1 => put(out, number, few_floats::<1>(format, row, x, inputs)),
                        2 => put(out, number, few_floats::<2>(format, row, x, inputs)),
                        3 => put(out, number, few_floats::<3>(format, row, x, inputs)),
                        _ => put(out, number, few_floats::<4>(format, row, x, inputs)),
                    }
                }
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn few_floats<const N: usize>(
            format: BlockFormat,
            row: &[u8],
            x: &[f32],
            inputs: usize,
        ) -> [f32; N] {
            match format {
                BlockFormat::F32 => {
                    eights::<32, N>(row, x, inputs, |eight| _mm256_castsi256_ps(load256(eight)))
                }
                _ => eights::<16, N>(row, x, inputs, |eight| _mm256_cvtph_ps(load128(eight))),
            }
        }

        /// BF16 weights with columns that were [`unzipped`].
        #[target_feature(enable = $features)]
        fn few_bf16(rows: &[u8], row_bytes: usize, x: &[[f32; 16]], out: &mut [&mut [f32]]) {
            let of_column = x.len() / out.len().max(1);
            for (number, row) in rows.chunks_exact(row_bytes).enumerate() {
                for (x, out) in x.chunks(AT_ONCE * of_column).zip(out.chunks_mut(AT_ONCE)) {
                    match out.len() {
                        1 => put(out, number, sixteens::<1>(row, x, of_column)),
                        2 => put(out, number, sixteens::<2>(row, x, of_column)),
                        3 => put(out, number, sixteens::<3>(row, x, of_column)),
                        _ => put(out, number, sixteens::<4>(row, x, of_column)),
                    }
                }
            }
        }

        /// The products of a row of BF16 numbers with `N` columns. A vector of 32 bits has two numbers in each lane: the second as f32 with some more
        /// bits, which are cleared, and the first, which is shifted to its place. Each column's sum has the same terms in the same
        /// order whatever their number is.
        #[target_feature(enable = $features)]
        #[inline]
        fn sixteens<const N: usize>(row: &[u8], x: &[[f32; 16]], of_column: usize) -> [f32; N] {
            let (all, few) = row.as_chunks::<32>();
            let (runs, rest) = all.as_chunks::<2>();
            let mut columns: [&[[f32; 16]]; N] = [&[]; N];
            for (column, x) in columns.iter_mut().zip(x.chunks_exact(of_column)) {
                *column = x;
            }
            let in_runs = columns.map(|x| &x.as_chunks::<2>().0[..runs.len()]);
            let upper = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            let mut sums = [[_mm256_setzero_ps(); 4]; N];
            for (at, run) in runs.iter().enumerate() {
                for part in 0..2 {
                    let bits = load256(&run[part]);
                    let first = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
                    let second = _mm256_castsi256_ps(_mm256_and_si256(bits, upper));
                    for column in 0..N {
                        let [even, odd]: [__m256; 2] = bytemuck::cast(in_runs[column][at][part]);
                        let sums = &mut sums[column];
                        sums[2 * part] = _mm256_fmadd_ps(first, even, sums[2 * part]);
                        sums[2 * part + 1] = _mm256_fmadd_ps(second, odd, sums[2 * part + 1]);
                    }
                }
            }
            // Up to one more vector, and less than a vector, which zeros fill up.
            let mut last = [0; 32];
            last[..few.len()].copy_from_slice(few);
            let last = (!few.is_empty()).then_some(&last);
            for (part, weights) in rest.iter().chain(last).enumerate() {
                let bits = load256(weights);
                let first = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
                let second = _mm256_castsi256_ps(_mm256_and_si256(bits, upper));
                for column in 0..N {
                    let [even, odd]: [__m256; 2] =
                        bytemuck::cast(columns[column][2 * runs.len() + part]);
                    let [a, b, ..] = &mut sums[column];
                    *a = _mm256_fmadd_ps(first, even, *a);
                    *b = _mm256_fmadd_ps(second, odd, *b);
                }
            }
            let mut totals = [0.0; N];
            for column in 0..N {
                let [a, b, c, d] = sums[column];
                totals[column] = total([_mm256_add_ps(a, b), _mm256_add_ps(c, d)]);
            }
            totals
        }

        /// The products of a row with `N` columns; `wide` makes a vector of the `BYTES` of eight weights. Each column's sum has the
        /// same terms in the same order whatever their number is.
        #[target_feature(enable = $features)]
        #[inline]
        fn eights<const BYTES: usize, const N: usize>(
            row: &[u8],
            x: &[f32],
            inputs: usize,
            wide: impl Fn(&[u8; BYTES]) -> __m256,
        ) -> [f32; N] {
            let (all, few) = row.as_chunks::<BYTES>();
            let (runs, rest) = all.as_chunks::<4>();
            let mut columns: [&[f32]; N] = [&[]; N];
            for (column, x) in columns.iter_mut().zip(x.chunks_exact(inputs)) {
                *column = x;
            }
            // All have as many runs as the row: no index is checked again below.
            let in_runs = columns.map(|x| &x.as_chunks::<32>().0[..runs.len()]);
            let mut sums = [[_mm256_setzero_ps(); 4]; N];
            for (at, run) in runs.iter().enumerate() {
                for part in 0..4 {
                    let weights = wide(&run[part]);
                    for column in 0..N {
                        let numbers = floats(&in_runs[column][at].as_chunks::<8>().0[part]);
                        let sum = &mut sums[column][part];
                        *sum = _mm256_fmadd_ps(weights, numbers, *sum);
                    }
                }
            }
            // Up to three more vectors, and less than a vector, which zeros fill up.
            let mut last = [0; BYTES];
            last[..few.len()].copy_from_slice(few);
            let last = (!few.is_empty()).then_some(&last);
            for (part, weights) in rest.iter().chain(last).enumerate() {
                let weights = wide(weights);
                for column in 0..N {
                    let from = &columns[column][32 * runs.len() + 8 * part..];
                    let mut numbers = [0.0; 8];
                    let count = from.len().min(8);
                    numbers[..count].copy_from_slice(&from[..count]);
                    let sum = &mut sums[column][part];
                    *sum = _mm256_fmadd_ps(weights, floats(&numbers), *sum);
                }
            }
            let mut totals = [0.0; N];
            for column in 0..N {
                let [a, b, c, d] = sums[column];
                totals[column] = total([_mm256_add_ps(a, b), _mm256_add_ps(c, d)]);
            }
            totals
        }

        /// Row by row, for at most [`FEW`] columns.
        #[target_feature(enable = $features)]
        pub(in crate::product) fn few<B: Blocks>(
            rows: &[u8],
            row_bytes: usize,
            x: &Activations,
            out: &mut [&mut [f32]],
        ) {
            match B::FORMAT {
                BlockFormat::Q4_0 | BlockFormat::Q8_0 | BlockFormat::Q4_K | BlockFormat::Q6_K => {
                    for (number, row) in rows.chunks_exact(row_bytes).enumerate() {
                        for (at, out) in out.chunks_mut(AT_ONCE).enumerate() {
                            let x = |column: usize| x.column(at * AT_ONCE + column);
                            match out.len() {
                                1 => put(out, number, in_registers::<B, 1>(row, [x(0)])),
                                2 => put(out, number, in_registers::<B, 2>(row, [x(0), x(1)])),
                                3 => {
                                    let x = [x(0), x(1), x(2)];
                                    put(out, number, in_registers::<B, 3>(row, x));
                                }
                                _ => {
                                    let x = [x(0), x(1), x(2), x(3)];
                                    put(out, number, in_registers::<B, 4>(row, x));
                                }
                            }
                        }
                    }
                    return;
                }
                _ => {}
            }
            if let [out] = out {
                for (row, out) in rows.chunks_exact(row_bytes).zip(out.iter_mut()) {
                    *out = any::<B>(row, x.column(0));
                }
                return;
            }
            let mut group = WeightGroup::EMPTY;
            for (number, row) in rows.chunks_exact(row_bytes).enumerate() {
                let mut sums = [[_mm256_setzero_ps(); 2]; FEW];
                for (at, blocks) in row.chunks(WeightGroup::bytes::<B>()).enumerate() {
                    group.unpack::<B>(blocks);
                    for (column, sums) in sums.iter_mut().enumerate().take(out.len()) {
                        *sums = unpacked::<B>(&group, &x.column(column)[at], *sums);
                    }
                }
                for (out, sums) in out.iter_mut().zip(sums) {
                    out[number] = total(sums);
                }
            }
        }

        /// Some columns, without a way through memory. Each column's sum has the same terms in the same
        /// order whatever their number is.
        #[target_feature(enable = $features)]
        #[inline]
        fn in_registers<B: Blocks, const N: usize>(
            row: &[u8],
            x: [&[ActivationGroup]; N],
        ) -> [f32; N] {
            match B::FORMAT {
                BlockFormat::Q4_0 => q4_0(row, x),
                BlockFormat::Q8_0 => q8_0(row, x),
                BlockFormat::Q4_K => q4_k(row, x),
                _ => q6_k(row, x),
            }
        }

        /// One column, by way of memory that the first-level cache holds.
        #[target_feature(enable = $features)]
        fn any<B: Blocks>(row: &[u8], x: &[ActivationGroup]) -> f32 {
            let mut group = WeightGroup::EMPTY;
            let mut sums = [_mm256_setzero_ps(); 2];
            for (blocks, x) in row.chunks(WeightGroup::bytes::<B>()).zip(x) {
                group.unpack::<B>(blocks);
                sums = unpacked::<B>(&group, x, sums);
            }
            total(sums)
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn unpacked<B: Blocks>(
            group: &WeightGroup,
            x: &ActivationGroup,
            mut sums: [__m256; 2],
        ) -> [__m256; 2] {
            let scales =
                bytemuck::cast::<[f32; 16], [[f32; 8]; 2]>(group.scale).map(|it| floats(&it));
            let offsets =
                bytemuck::cast::<[f32; 16], [[f32; 8]; 2]>(group.offset).map(|it| floats(&it));
            if B::SUB == 32 {
                let scale = _mm256_mul_ps(scales[0], floats(&x.scale));
                sums[1] = _mm256_fmadd_ps(offsets[0], floats(&x.sum32), sums[1]);
                for at in 0..8 {
                    let integers = dot_wide::<B>(part(&group.q, at), part(&x.q, at));
                    sums[at % 2] = scaled32(integers, scale, at, sums[at % 2]);
                }
            } else {
                let [scale, next] = scales16(scales, x);
                let x_sums = bytemuck::cast::<[f32; 16], [[f32; 8]; 2]>(x.sum16);
                sums[0] = _mm256_fmadd_ps(offsets[0], floats(&x_sums[0]), sums[0]);
                sums[1] = _mm256_fmadd_ps(offsets[1], floats(&x_sums[1]), sums[1]);
                for at in 0..4 {
                    let integers = dot_wide::<B>(part(&group.q, at), part(&x.q, at));
                    sums[0] = scaled16(integers, scale, at, sums[0]);
                    let integers = dot_wide::<B>(part(&group.q, at + 4), part(&x.q, at + 4));
                    sums[1] = scaled16(integers, next, at, sums[1]);
                }
            }
            sums
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn dot_wide<B: Blocks>(q: __m256i, x: __m256i) -> __m256i {
            match B::FORMAT {
                BlockFormat::Q8_0 => dot::<true>(_mm256_setzero_si256(), q, x),
                _ => dot::<false>(_mm256_setzero_si256(), q, x),
            }
        }

        /// Adds `integers` times the `at`-th of `scale`.
        #[target_feature(enable = $features)]
        #[inline]
        fn scaled32(integers: __m256i, scale: __m256, at: usize, sum: __m256) -> __m256 {
            let scale = _mm256_permutevar8x32_ps(scale, _mm256_set1_epi32(at as i32));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers), scale, sum)
        }

        /// Adds the lower half of `integers` times number `2 at` of `scale`, and the upper half times the next.
        #[target_feature(enable = $features)]
        #[inline]
        fn scaled16(integers: __m256i, scale: __m256, at: usize, sum: __m256) -> __m256 {
            let (low, high) = (2 * at as i32, 2 * at as i32 + 1);
            let places = _mm256_setr_epi32(low, low, low, low, high, high, high, high);
            let scale = _mm256_permutevar8x32_ps(scale, places);
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(integers), scale, sum)
        }

        /// Scales of sub-blocks of 16, each multiplied with that of the 32 activations it belongs to.
        #[target_feature(enable = $features)]
        #[inline]
        fn scales16(scales: [__m256; 2], x: &ActivationGroup) -> [__m256; 2] {
            let x = floats(&x.scale);
            let low = _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
            let high = _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
            [_mm256_mul_ps(scales[0], low), _mm256_mul_ps(scales[1], high)]
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn total(sums: [__m256; 2]) -> f32 {
            let numbers: [f32; 8] = bytemuck::cast(_mm256_add_ps(sums[0], sums[1]));
            let [a, b, c, d, e, f, g, h] = numbers;
            ((a + e) + (b + f)) + ((c + g) + (d + h))
        }

        /// The scales of eight blocks, which are the first two bytes of each.
        #[target_feature(enable = $features)]
        #[inline]
        fn scales_of<const BYTES: usize>(blocks: &[[u8; BYTES]; 8]) -> __m256 {
            let half = |block: &[u8; BYTES]| i16::from_le_bytes([block[0], block[1]]);
            let [a, b, c, d, e, f, g, h] = blocks;
            _mm256_cvtph_ps(_mm_setr_epi16(
                half(a),
                half(b),
                half(c),
                half(d),
                half(e),
                half(f),
                half(g),
                half(h),
            ))
        }

        /// A row whose blocks have one scale and 32 integers that `integers` unpacks to a vector.
        #[target_feature(enable = $features)]
        #[inline]
        fn simple<const BYTES: usize, const WIDE: bool, const N: usize>(
            row: &[u8],
            x: [&[ActivationGroup]; N],
            zero: f32,
            integers: impl Fn(&[u8; BYTES]) -> __m256i,
        ) -> [f32; N] {
            let mut sums = [[_mm256_setzero_ps(); 2]; N];
            let mut offsets = [_mm256_setzero_ps(); N];
            let mut group = |blocks: &[[u8; BYTES]; 8], x: [&ActivationGroup; N]| {
                let scales = scales_of(blocks);
                let mut scale = [_mm256_setzero_ps(); N];
                for column in 0..N {
                    scale[column] = _mm256_mul_ps(scales, floats(&x[column].scale));
                    offsets[column] =
                        _mm256_fmadd_ps(scales, floats(&x[column].sum32), offsets[column]);
                }
                for at in 0..8 {
                    let q = integers(&blocks[at]);
                    for column in 0..N {
                        let products =
                            dot::<WIDE>(_mm256_setzero_si256(), q, part(&x[column].q, at));
                        let sum = &mut sums[column][at % 2];
                        *sum = scaled32(products, scale[column], at, *sum);
                    }
                }
            };
            let (groups, rest) = row.as_chunks::<BYTES>().0.as_chunks::<8>();
            for (at, blocks) in groups.iter().enumerate() {
                group(blocks, x.map(|x| &x[at]));
            }
            if !rest.is_empty() {
                // Blocks of zero bytes have the scale 0.
                let mut blocks = [[0; BYTES]; 8];
                blocks[..rest.len()].copy_from_slice(rest);
                group(&blocks, x.map(|x| &x[groups.len()]));
            }
            let mut totals = [0.0; N];
            for column in 0..N {
                let [first, second] = sums[column];
                let first = _mm256_fmadd_ps(offsets[column], _mm256_set1_ps(-zero), first);
                totals[column] = total([first, second]);
            }
            totals
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn q4_0<const N: usize>(row: &[u8], x: [&[ActivationGroup]; N]) -> [f32; N] {
            simple::<18, false, N>(row, x, 8.0, |block| {
                let Some(packed) = block[2..].first_chunk::<16>() else {
                    return _mm256_setzero_si256();
                };
                let low = load128(packed);
                let both = _mm256_set_m128i(_mm_srli_epi16::<4>(low), low);
                _mm256_and_si256(both, _mm256_set1_epi8(15))
            })
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn q8_0<const N: usize>(row: &[u8], x: [&[ActivationGroup]; N]) -> [f32; N] {
            simple::<34, true, N>(row, x, 128.0, |block| {
                let Some(packed) = block[2..].first_chunk::<32>() else {
                    return _mm256_setzero_si256();
                };
                _mm256_xor_si256(load256(packed), _mm256_set1_epi8(-128))
            })
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn q4_k<const N: usize>(row: &[u8], x: [&[ActivationGroup]; N]) -> [f32; N] {
            let mut sums = [[_mm256_setzero_ps(); 2]; N];
            let mask = _mm256_set1_epi8(15);
            for (group, block) in row.as_chunks::<144>().0.iter().enumerate() {
                let (mut scale, mut offset) = ([0.0; 8], [0.0; 8]);
                crate::block::q4_k::scales_and_offsets(block, &mut scale, &mut offset);
                let mut scales = [_mm256_setzero_ps(); N];
                for column in 0..N {
                    let x = &x[column][group];
                    scales[column] = _mm256_mul_ps(floats(&scale), floats(&x.scale));
                    sums[column][1] =
                        _mm256_fmadd_ps(floats(&offset), floats(&x.sum32), sums[column][1]);
                }
                for (at, packed) in block[16..].as_chunks::<32>().0.iter().enumerate() {
                    let packed = load256(packed);
                    let low = _mm256_and_si256(packed, mask);
                    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), mask);
                    for column in 0..N {
                        let (x, scale) = (&x[column][group], scales[column]);
                        let low = dot::<false>(_mm256_setzero_si256(), low, part(&x.q, 2 * at));
                        let high =
                            dot::<false>(_mm256_setzero_si256(), high, part(&x.q, 2 * at + 1));
                        let [first, second] = sums[column];
                        sums[column] = [
                            scaled32(low, scale, 2 * at, first),
                            scaled32(high, scale, 2 * at + 1, second),
                        ];
                    }
                }
            }
            let mut totals = [0.0; N];
            for column in 0..N {
                totals[column] = total(sums[column]);
            }
            totals
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn q6_k<const N: usize>(row: &[u8], x: [&[ActivationGroup]; N]) -> [f32; N] {
            let mut sums = [[_mm256_setzero_ps(); 2]; N];
            let mut offsets = [_mm256_setzero_ps(); N];
            let (four, two) = (_mm256_set1_epi8(15), _mm256_set1_epi8(3));
            for (group, block) in row.as_chunks::<210>().0.iter().enumerate() {
                let Some(packed) = block[192..].first_chunk::<16>() else { continue };
                let d = _mm256_set1_ps(crate::block::f16_to_f32(u16::from_le_bytes([
                    block[208], block[209],
                ])));
                let integers = load128(packed);
                let first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(integers));
                let second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(
                    integers, integers,
                )));
                let scales = [_mm256_mul_ps(first, d), _mm256_mul_ps(second, d)];
                let mut scales_of = [[_mm256_setzero_ps(); 2]; N];
                for column in 0..N {
                    let x = &x[column][group];
                    let x_sums = bytemuck::cast::<[f32; 16], [[f32; 8]; 2]>(x.sum16);
                    let offset = _mm256_fmadd_ps(scales[0], floats(&x_sums[0]), offsets[column]);
                    offsets[column] = _mm256_fmadd_ps(scales[1], floats(&x_sums[1]), offset);
                    scales_of[column] = scales16(scales, x);
                }
                let low = block[..128].as_chunks::<32>().0;
                let high = block[128..192].as_chunks::<32>().0;
                for half in 0..2 {
                    let (a, b) = (load256(&low[2 * half]), load256(&low[2 * half + 1]));
                    let upper = load256(&high[half]);
                    let bits =
                        |shifted: __m256i| _mm256_slli_epi16::<4>(_mm256_and_si256(shifted, two));
                    let q = [
                        _mm256_or_si256(_mm256_and_si256(a, four), bits(upper)),
                        _mm256_or_si256(
                            _mm256_and_si256(b, four),
                            bits(_mm256_srli_epi16::<2>(upper)),
                        ),
                        _mm256_or_si256(
                            _mm256_and_si256(_mm256_srli_epi16::<4>(a), four),
                            bits(_mm256_srli_epi16::<4>(upper)),
                        ),
                        _mm256_or_si256(
                            _mm256_and_si256(_mm256_srli_epi16::<4>(b), four),
                            bits(_mm256_srli_epi16::<6>(upper)),
                        ),
                    ];
                    for (at, q) in q.into_iter().enumerate() {
                        for column in 0..N {
                            let x = part(&x[column][group].q, 4 * half + at);
                            let products = dot::<false>(_mm256_setzero_si256(), q, x);
                            let sum = &mut sums[column][at % 2];
                            *sum = scaled16(products, scales_of[column][half], at, *sum);
                        }
                    }
                }
            }
            let mut totals = [0.0; N];
            for column in 0..N {
                let [first, second] = sums[column];
                let first = _mm256_fmadd_ps(offsets[column], _mm256_set1_ps(-32.0), first);
                totals[column] = total([first, second]);
            }
            totals
        }
    };
}

pub(super) use few_columns;
