// A service that answers 401 and destroys the connection before it has read the body, as middleware of Node's often does.
import http from 'node:http';

http
  .createServer((request, response) => {
    response.writeHead(401, { 'WWW-Authenticate': 'Bearer', 'Content-Length': 0 });
    response.end(() => request.socket.destroy());
  })
  .listen(Number(process.argv[2]), '127.0.0.1');
