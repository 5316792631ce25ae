//! The characters of the stroke font: polylines on a grid of 4 x 6 units.

/// A character and its polylines, separated by spaces. A point is two digits, x from 0 to 4 and y from 0 (cap height)
/// to 6 (baseline).
pub type Glyph = (char, &'static str);

/// Width of the grid.
pub const GRID_WIDTH: f32 = 4.0;
/// Height of the grid.
pub const GRID_HEIGHT: f32 = 6.0;

/// Every character but the space. The stem of T ends in a short segment, which has no serif: in small type, T with a
/// serif looks like I.
#[rustfmt::skip]
pub const GLYPHS: [Glyph; 40] = [
    ('A', "062046 1434"), ('B', "06003041423303 3344453606"), ('C', "4130100105163645"),
    ('D', "00204244260600"), ('E', "40000646 0333"), ('F', "400006 0333"),
    ('G', "41301001051636454323"), ('H', "0006 4046 0343"), ('I', "2026 1030 1636"),
    ('J', "2040 3035261605"), ('K', "0006 4004 1346"), ('L', "000646"), ('M', "0600234046"),
    ('N', "06004640"), ('O', "103041453616050110"), ('P', "06003041423303"),
    ('Q', "103041453616050110 3446"), ('R', "06003041423303 2346"), ('S', "413010010213334445361605"),
    ('T', "0040 202426"), ('U', "000516364540"), ('V', "002640"), ('W', "0016233640"),
    ('X', "0046 4006"), ('Y', "002340 2326"), ('Z', "00400646"),
    ('0', "103041453616050110 0541"), ('1', "012026 1636"), ('2', "01103041420646"),
    ('3', "01103041423313 334445361605"), ('4', "44043036"), ('5', "4000023243453606"),
    ('6', "40200205163645443303"), ('7', "004016"),
    ('8', "103041423313020110 13040516364544 4433"), ('9', "06264441301001021343"),
    ('.', "2526"), (':', "2122 2526"), ('-', "1333"), ('/', "0640"),
];

/// Returns the line segments of a character in grid units, each as its two ends; none for a space and for characters
/// that the font lacks.
pub fn segments(character: char) -> impl Iterator<Item = [[f32; 2]; 2]> {
    let polylines = GLYPHS.iter().find(|glyph| glyph.0 == character).map_or("", |glyph| glyph.1);
    polylines.split(' ').flat_map(|line| {
        let point = |digits: &[u8; 2]| digits.map(|digit| f32::from(digit - b'0'));
        let points = line.as_bytes().as_chunks::<2>().0;
        points.windows(2).map(move |ends| [point(&ends[0]), point(&ends[1])])
    })
}
