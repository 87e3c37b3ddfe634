window.YTD.tweets.part0 = [
 {
  "tweet": {
   "id": "0",
   "full_text": "Open the account page, choose Security and follow the link in the mail.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "1",
   "full_text": "Parcels inside the country take two to three working days.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "2",
   "full_text": "Yes, until it is packed; write to us with the number of the order.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "3",
   "full_text": "It is attached to the mail that confirmed your payment.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "4",
   "full_text": "Most banks ask for a second confirmation in their own app.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "5",
   "full_text": "Open Subscriptions and choose End; it runs until the paid month is over.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "6",
   "full_text": "Yes, but customs may ask for a fee when the parcel arrives.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "7",
   "full_text": "Two years from the day of purchase, with the receipt.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "8",
   "full_text": "At thirty degrees, without softener, and never in the dryer.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "9",
   "full_text": "The glass is, but please take off the wooden lid before.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "10",
   "full_text": "Measure your chest and compare it with the table below the picture.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "11",
   "full_text": "Print the label from your account and bring the parcel to any shop.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "12",
   "full_text": "Firms can; write to us once with your tax number.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 },
 {
  "tweet": {
   "id": "13",
   "full_text": "Any of the workshops in our list, or you send it to us.",
   "created_at": "Mon Mar 04 10:00:00 +0000 2024",
   "favorite_count": "2"
  }
 }
]