//! PostgreSQL's protocol from the server's side: as much of it as the store speaks.

/// What a client asks to be done.
#[derive(Debug)]
pub(super) enum Asked {
    /// Text, without parameters.
    Simple(String),
    /// With parameters in binary.
    Typed(String, Parameters),
    Goodbye,
}

/// Parameters in binary, read one after the other.
#[derive(Debug)]
pub(super) struct Parameters(std::vec::IntoIter<Option<Vec<u8>>>);

impl Parameters {
    fn next(&mut self) -> Option<Vec<u8>> {
        self.0.next().expect("a statement has the parameters that it names")
    }

    pub(super) fn bytes(&mut self) -> Vec<u8> {
        self.next().expect("this parameter is never null")
    }

    pub(super) fn text(&mut self) -> String {
        String::from_utf8(self.bytes()).expect("text is UTF-8")
    }

    pub(super) fn optional_text(&mut self) -> Option<String> {
        self.next().map(|bytes| String::from_utf8(bytes).expect("text is UTF-8"))
    }

    pub(super) fn int(&mut self) -> i64 {
        int(&self.bytes())
    }

    pub(super) fn optional_int(&mut self) -> Option<i64> {
        self.next().map(|bytes| int(&bytes))
    }

    pub(super) fn bool(&mut self) -> bool {
        self.bytes() == [1]
    }

    pub(super) fn byte_arrays(&mut self) -> Vec<Vec<u8>> {
        let array = self.bytes();
        let mut cursor = Cursor(&array);
        if cursor.int(4) == 0 {
            return Vec::new();
        }
        cursor.take(8);
        let length = cursor.int(4);
        cursor.take(4);
        (0..length).map(|_| cursor.field().expect("no element is null")).collect()
    }

    pub(super) fn ints(&mut self) -> Vec<i64> {
        self.byte_arrays().iter().map(|bytes| int(bytes)).collect()
    }
}

fn int(bytes: &[u8]) -> i64 {
    let negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
    bytes.iter().fold(if negative { -1 } else { 0 }, |sum, byte| sum << 8 | i64::from(*byte))
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn int(&mut self, length: usize) -> i64 {
        int(self.take(length))
    }

    fn string(&mut self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).expect("a string ends");
        let text = String::from_utf8(self.take(end).to_vec()).expect("text is UTF-8");
        self.take(1);
        text
    }

    fn field(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.int(4)).ok()?;
        Some(self.take(length).to_vec())
    }
}

/// Puts the messages of one request together.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    sql: String,
    parameters: Vec<Option<Vec<u8>>>,
}

impl Assembly {
    /// Takes a message; what is asked, once it is complete.
    pub(super) fn take(&mut self, letter: u8, body: &[u8]) -> Option<Asked> {
        let mut cursor = Cursor(body);
        match letter {
            b'Q' => Some(Asked::Simple(cursor.string())),
            b'P' => {
                let _unnamed = cursor.string();
                self.sql = cursor.string();
                None
            }
            b'B' => {
                let (_portal, _statement) = (cursor.string(), cursor.string());
                let formats = cursor.int(2);
                cursor.take(2 * usize::try_from(formats).expect("a count"));
                let count = cursor.int(2);
                self.parameters = (0..count).map(|_| cursor.field()).collect();
                None
            }
            b'D' | b'E' => None,
            b'S' => {
                let parameters = std::mem::take(&mut self.parameters);
                let sql = std::mem::take(&mut self.sql);
                Some(Asked::Typed(sql, Parameters(parameters.into_iter())))
            }
            b'X' => Some(Asked::Goodbye),
            other => panic!("the simulated database does not know message {:?}", other as char),
        }
    }
}

/// One value of a row.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null(Kind),
    Int(i64),
    Bool(bool),
    Bytes(Vec<u8>),
    Text(String),
    BytesArray(Vec<Vec<u8>>),
    IntArray(Vec<i64>),
    /// What a function of type `void` returns.
    Void,
}

/// The type of a value that is null.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Int,
    Bytes,
    Text,
    BytesArray,
    IntArray,
}

impl Value {
    /// An array, or null where it would be empty, as `array_agg` has it.
    pub(super) fn aggregate(values: Vec<Vec<u8>>) -> Self {
        if values.is_empty() { Self::Null(Kind::BytesArray) } else { Self::BytesArray(values) }
    }

    pub(super) fn aggregate_ints(values: Vec<i64>) -> Self {
        if values.is_empty() { Self::Null(Kind::IntArray) } else { Self::IntArray(values) }
    }

    fn oid(&self) -> u32 {
        match self {
            Self::Int(_) | Self::Null(Kind::Int) => 20,
            Self::Bool(_) => 16,
            Self::Bytes(_) | Self::Null(Kind::Bytes) => 17,
            Self::Text(_) | Self::Null(Kind::Text) => 25,
            Self::BytesArray(_) | Self::Null(Kind::BytesArray) => 1001,
            Self::IntArray(_) | Self::Null(Kind::IntArray) => 1016,
            Self::Void => 2278,
        }
    }

    fn encode(&self) -> Option<Vec<u8>> {
        let array = |oid: u32, elements: Vec<Vec<u8>>| {
            let mut bytes = Vec::new();
            put(&mut bytes, 1);
            put(&mut bytes, 0);
            put(&mut bytes, oid);
            put(&mut bytes, u32::try_from(elements.len()).expect("a short array"));
            put(&mut bytes, 1);
            for element in elements {
                put(&mut bytes, u32::try_from(element.len()).expect("a short element"));
                bytes.extend(element);
            }
            bytes
        };
        Some(match self {
            Self::Null(_) => return None,
            Self::Int(value) => value.to_be_bytes().to_vec(),
            Self::Bool(value) => vec![u8::from(*value)],
            Self::Bytes(value) => value.clone(),
            Self::Text(value) => value.clone().into_bytes(),
            Self::BytesArray(values) => array(17, values.clone()),
            Self::IntArray(values) => {
                array(20, values.iter().map(|value| value.to_be_bytes().to_vec()).collect())
            }
            Self::Void => Vec::new(),
        })
    }
}

fn put(bytes: &mut Vec<u8>, number: u32) {
    bytes.extend(number.to_be_bytes());
}

/// Rows with the names of their columns.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    pub(super) columns: Vec<&'static str>,
    pub(super) rows: Vec<Vec<Value>>,
}

impl Rows {
    pub(super) fn none() -> Self {
        Self::default()
    }

    pub(super) fn one(row: Vec<(&'static str, Value)>) -> Self {
        let (columns, row) = row.into_iter().unzip();
        Self { columns, rows: vec![row] }
    }
}

/// How a transaction stands, as every answer ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    Idle,
    Open,
    Failed,
}

/// An error as PostgreSQL reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SqlError {
    pub(super) code: &'static str,
    pub(super) message: &'static str,
}

/// Answers being written.
#[derive(Debug, Default)]
pub(super) struct Reply(pub(super) Vec<u8>);

impl Reply {
    pub(super) fn welcome(process: i32) -> Self {
        let mut reply = Self::default();
        reply.message(b'R', &0_u32.to_be_bytes());
        let mut key = process.to_be_bytes().to_vec();
        key.extend(process.to_be_bytes());
        reply.message(b'K', &key);
        reply.ready(Standing::Idle);
        reply
    }

    pub(super) fn typed(&mut self, rows: &Rows) {
        self.message(b'1', &[]);
        self.message(b'2', &[]);
        self.message(b't', &[0, 0]);
        match rows.rows.first() {
            None => self.message(b'n', &[]),
            Some(first) => self.description(&rows.columns, first, 1),
        }
        for row in &rows.rows {
            self.row(row.iter().map(Value::encode));
        }
        self.message(b'C', b"SELECT 1\0");
    }

    /// The same as text: numbers and words only.
    pub(super) fn simple(&mut self, rows: &Rows) {
        if let Some(first) = rows.rows.first() {
            self.description(&rows.columns, first, 0);
        }
        for row in &rows.rows {
            self.row(row.iter().map(|value| match value {
                Value::Int(value) => Some(value.to_string().into_bytes()),
                Value::Bool(value) => Some(if *value { b"t".to_vec() } else { b"f".to_vec() }),
                Value::Text(value) => Some(value.clone().into_bytes()),
                other => panic!("{other:?} is not asked for as text"),
            }));
        }
        self.message(b'C', b"SELECT 1\0");
    }

    fn description(&mut self, columns: &[&str], first: &[Value], format: u8) {
        let count = u16::try_from(columns.len()).expect("few columns");
        let mut body = count.to_be_bytes().to_vec();
        for (column, value) in columns.iter().zip(first) {
            body.extend(column.as_bytes());
            body.push(0);
            body.extend([0; 6]);
            put(&mut body, value.oid());
            body.extend([0xff; 6]);
            body.extend([0, format]);
        }
        self.message(b'T', &body);
    }

    fn row(&mut self, fields: impl ExactSizeIterator<Item = Option<Vec<u8>>>) {
        let mut body = u16::try_from(fields.len()).expect("few columns").to_be_bytes().to_vec();
        for field in fields {
            match field {
                None => put(&mut body, u32::MAX),
                Some(bytes) => {
                    put(&mut body, u32::try_from(bytes.len()).expect("a short field"));
                    body.extend(bytes);
                }
            }
        }
        self.message(b'D', &body);
    }

    pub(super) fn error(&mut self, error: &SqlError) {
        let mut body = Vec::new();
        for (field, text) in
            [(b'S', "ERROR"), (b'V', "ERROR"), (b'C', error.code), (b'M', error.message)]
        {
            body.push(field);
            body.extend(text.as_bytes());
            body.push(0);
        }
        body.push(0);
        self.message(b'E', &body);
    }

    pub(super) fn ready(&mut self, standing: Standing) {
        let letter = match standing {
            Standing::Idle => b'I',
            Standing::Open => b'T',
            Standing::Failed => b'E',
        };
        self.message(b'Z', &[letter]);
    }

    fn message(&mut self, letter: u8, body: &[u8]) {
        self.0.push(letter);
        put(&mut self.0, u32::try_from(body.len() + 4).expect("a short message"));
        self.0.extend(body);
    }
}
