// An Express application as its router comes: letter case and a slash at the end do not count. It takes method overrides.
const express = require('express');
const methodOverride = require('method-override');

const app = express();
for (const place of ['X-HTTP-Method-Override', 'X-HTTP-Method', 'X-Method-Override', '_method'])
  app.use(methodOverride(place, { methods: null }));
app.use(express.json());

const rows = [];
// The fields as they came, each with its name.
const fields = (request) => request.rawHeaders.flatMap((name, at, all) => (at % 2 ? [] : [[name, all[at + 1]]]));

app.get('/posts', (request, response) => response.json(rows));
app.post('/posts', (request, response) => {
  rows.push(request.body);
  response.status(201).json({ row: rows.length, fields: fields(request) });
});
app.post('/notes', (request, response) => response.status(201).json({ fields: fields(request) }));
app.listen(Number(process.argv[2]), '127.0.0.1');
